"""Tests of appends of rows that are in the plan itself.

Which plans are such appends, and that each is read once on its way from the door into the log.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark.sql.connect.functions as F
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from haproc import protos
from haproc.classify.bounds import Bounds
from haproc.classify.model import Kind, OperationClass
from haproc.classify.plans.commands import read_opened, read_plan
from haproc.classify.plans.parsing import opened
from haproc.classify.rules import Rules
from haproc.classify.tokens import tokenize
from haproc.config.sections import Limits
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Settings
from haproc.engine.statement import SparkPlan
from haproc.replicate.records.operation import Operation
from haproc.route.classifying import Classifying, Understood
from haproc.route.making import Making
from haproc.route.model import Request, SentPlan
from haproc.route.offload import Inline
from haproc.route.plans import Taken
from haproc.route.ruling import Ruling
from haproc.route.stand_in import has_texts, local_rows
from haproc.sessions.journal import ArtifactEntry
from tests.unit.recorded_plans import Program, recorded
from tests.unit.test_connect_execute import _read as read_at_door

TWO = StructType().add("a", IntegerType()).add("b", StringType())
NUMBERS = StructType().add("id", LongType()).add("n", IntegerType())
T = "spark_catalog.default.t"


def rows(s: Any) -> Any:
    return s.createDataFrame([(1, "x")], TWO)


def numbers(s: Any) -> Any:
    return s.createDataFrame([(1, 2)], NUMBERS)


def columns_of(program: Program) -> Any:
    plan = recorded(program)
    return local_rows(plan, read_plan(plan))


PLAIN: dict[str, tuple[Program, list[str]]] = {
    "writeTo": (lambda s: rows(s).writeTo("t").append(), ["a", "b"]),
    "saveAsTable": (lambda s: rows(s).write.mode("append").saveAsTable("t"), ["a", "b"]),
    "with a format": (
        lambda s: rows(s).write.format("delta").mode("append").saveAsTable("t"),
        ["a", "b"],
    ),
    "insertInto": (lambda s: rows(s).write.insertInto("t"), ["a", "b"]),
    "names": (lambda s: s.createDataFrame([(1,)], ["k"]).writeTo("t").append(), ["k"]),
    "names over names": (lambda s: rows(s).toDF("x", "y").toDF("c", "d").writeTo("t").append(),
                         ["c", "d"]),
    "pandas": (lambda s: s.createDataFrame(pd.DataFrame({"k": [1]})).writeTo("t").append(), ["k"]),
    "arrow": (lambda s: s.createDataFrame(pa.table({"k": [1]})).writeTo("t").append(), ["k"]),
    "no rows": (lambda s: s.createDataFrame([], TWO).writeTo("t").append(), ["a", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_local_rows_of_a_plain_append_are_its_columns(name: str) -> None:
    program, names = PLAIN[name]
    assert [column for column, _ in columns_of(program)] == names


OTHER: dict[str, Program] = {
    "another mode": lambda s: rows(s).write.mode("overwrite").saveAsTable("t"),
    "a new table": lambda s: rows(s).write.saveAsTable("t"),
    "over all": lambda s: rows(s).write.insertInto("t", overwrite=True),
    "over some": lambda s: rows(s).writeTo("t").overwrite(F.col("a") > 1),
    "over partitions": lambda s: rows(s).writeTo("t").overwritePartitions(),
    "create": lambda s: rows(s).writeTo("t").create(),
    "an option": lambda s: rows(s).writeTo("t").option("mergeSchema", "true").append(),
    "an option of save": lambda s: rows(s).write.mode("append").option(
        "mergeSchema", "true").saveAsTable("t"),
    "partitions": lambda s: rows(s).write.mode("append").partitionBy("a").saveAsTable("t"),
    "clusters": lambda s: rows(s).write.mode("append").clusterBy("a").saveAsTable("t"),
    "another format": lambda s: rows(s).write.format("parquet").mode("append").saveAsTable("t"),
    "a provider": lambda s: rows(s).writeTo("t").using("delta").append(),
    "a property": lambda s: rows(s).writeTo("t").tableProperty("a.b", "c").append(),
    "a filter": lambda s: rows(s).filter("a > rand()").writeTo("t").append(),
    "a column that may be a function": lambda s: rows(s).select("current_date").writeTo(
        "t").append(),
    "another column": lambda s: rows(s).withColumn("c", F.uuid()).writeTo("t").append(),
    "an alias": lambda s: rows(s).alias("x").writeTo("t").append(),
    "an observation": lambda s: rows(s).observe("o", F.count("*").alias("c")).writeTo("t").append(),
    "a table": lambda s: s.table("x").writeTo("t").append(),
    "a range": lambda s: s.range(3).writeTo("t").append(),
    "two of them": lambda s: rows(s).union(rows(s)).writeTo("t").append(),
    "a merge": lambda s: rows(s).mergeInto("t", F.expr("true")).whenMatched().delete().merge(),
    "a query": lambda s: rows(s).collect(),
    "too few names": lambda s: rows(s).toDF("x").writeTo("t").append(),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_local_rows_of_any_other_plan_are_none(name: str) -> None:
    assert columns_of(OTHER[name]) is None


def test_local_rows_of_a_write_that_may_change_the_schema_are_none() -> None:
    for name, command in (("writeTo", "write_operation_v2"), ("saveAsTable", "write_operation")):
        plan = recorded(PLAIN[name][0])
        getattr(plan.command, command).with_schema_evolution = True
        assert local_rows(plan, read_plan(plan)) is None


def changed(**local: Any) -> Any:
    """Return the columns of an append whose rows are changed by hand."""
    plan = recorded(PLAIN["writeTo"][0])
    relation = plan.command.write_operation_v2.input.local_relation
    for field, value in local.items():
        setattr(relation, field, value)
    return local_rows(plan, read_plan(plan))


@pytest.mark.parametrize(
    "local",
    [
        {"data": b"no stream"},
        {"schema": "a INT, b STRING"},
        {"schema": "{}"},
        {"schema": '{"fields": [{"name": "a", "type": "integer"}]}'},
        {"schema": '{"fields": [{"name": "a"}, {"name": "b", "type": "string"}]}'},
        {"schema": "[" * 100_000},
        {"schema": '{"fields": [{"name": "a", "type": "integer"}, '
         '{"name": "b", "type": {"type": "udt", "sqlType": "string"}}]}'},
    ],
)  # fmt: skip
def test_local_rows_that_spark_might_refuse_are_none(local: dict[str, Any]) -> None:
    assert changed(**local) is None


def test_string_columns_are_found_by_arrow_type_and_by_spark_type() -> None:
    assert has_texts(columns_of(PLAIN["writeTo"][0]))
    assert not has_texts(columns_of(lambda s: numbers(s).writeTo("t").append()))
    nested = pa.table({"k": [[{"s": "x"}]]})
    assert has_texts(columns_of(lambda s: s.createDataFrame(nested).writeTo("t").append()))
    times = changed(
        schema='{"fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "date"}]}'
    )
    assert has_texts(times)


class Engine:
    """Returns the columns of a table, and counts the lookups."""

    def __init__(self, columns: Sequence[Column] | None) -> None:
        self.columns, self.lookups = columns, 0

    async def table_columns(self, table: str) -> Sequence[Column]:
        assert table == T
        self.lookups += 1
        if self.columns is None:
            raise EngineError(ErrorKind.APPLICATION, "", error_class="TABLE_OR_VIEW_NOT_FOUND")
        return self.columns


def nobody(*_: Any) -> Any:
    raise AssertionError("Spark need not parse it")


class LookedAtError(Exception):
    """Spark received a plan for analysis."""


class Analysis:
    """Stands for Spark's analysis: a call ends the test of a plan."""

    def __init__(self) -> None:
        self.now = 0

    def epoch(self) -> int:
        return self.now

    async def frame(self, *_: Any, **__: Any) -> Any:
        raise LookedAtError


class Way:
    """The path of a plan from the door into the log, except for Spark's part in it."""

    def __init__(
        self, columns: Sequence[Column] | None = (), blobs: Mapping[str, bytes] | None = None
    ) -> None:
        self._blobs = blobs or {}
        self.engine, self.analysis = Engine(columns), Analysis()
        self.foreseen: list[Operation] = []
        self._classifying = Classifying(Inline(), Rules.builtin(), Bounds(), nobody, nobody)
        core: Any = SimpleNamespace(me="a", limits=Limits())
        engine: Any = self.engine
        analysis: Any = self.analysis
        self._making = Making(
            core, engine, analysis, Inline(), self._classifying, self._ground, self._get_blob,
            self.foreseen.append, Ruling(core, analysis, Inline()), fanout_parallel=False,
        )  # fmt: skip

    @staticmethod
    async def _ground(_: frozenset[str]) -> Any:
        return SimpleNamespace(below=lambda names: 7)

    async def _get_blob(self, name: str) -> bytes:
        return self._blobs[name]

    async def goes(self, program: Program, settings: Settings = Settings()) -> Operation:  # noqa: B008
        understood = await self._understood(recorded(program), settings=settings)
        return (await self._making.operation(understood)).operation

    async def taken(self, plan: Any, session: Any) -> Taken:
        return await self._making._plans.taken(await self._understood(plan, session))

    async def _understood(
        self,
        plan: Any,
        session: Any = None,
        settings: Settings = Settings(),  # noqa: B008
    ) -> Understood:
        received = await read_at_door(
            protos.base.ExecutePlanRequest(session_id="s", plan=plan).SerializeToString()
        )
        request = await self._classifying.with_read(Request("r", received.statement, "f"))
        statement = await self._classifying.request(request, settings)
        return Understood(request, session, settings, statement)


COLUMNS = (Column("id", "bigint"), Column("n", "int"))


@pytest.mark.parametrize(
    "write", [lambda d: d.writeTo("t").append(), lambda d: d.write.insertInto("t")]
)
async def test_append_of_numbers_is_made_without_analysis_or_table_lookup(
    write: Callable[[Any], Any],
) -> None:
    way = Way()
    op = await way.goes(lambda s: write(numbers(s)))
    assert isinstance(op.write, SparkPlan)
    assert (op.kind, op.operation_class) == (Kind.INSERT, OperationClass.ASYNCHRONOUS)
    assert (op.reads, op.writes, op.tables_known) == (frozenset(), {T}, True)
    assert (op.rests_on, op.analyzed_to, op.redefines) == (frozenset(), None, frozenset())
    assert way.engine.lookups == 0 and not way.foreseen


async def test_save_as_table_checks_once_that_its_table_exists_until_a_definition_changes() -> None:
    way = Way(COLUMNS)
    for epoch, count in ((0, 1), (0, 1), (1, 2)):
        way.analysis.now = epoch
        op = await way.goes(lambda s: numbers(s).write.mode("append").saveAsTable("t"))
        assert isinstance(op.write, SparkPlan)
        assert (op.kind, op.operation_class) == (Kind.INSERT, OperationClass.ASYNCHRONOUS)
        assert (op.rests_on, op.analyzed_to, op.redefines) == ({T}, 7, frozenset())
        assert way.engine.lookups == count
    assert {op.kind for op in way.foreseen} <= {Kind.INSERT}


async def test_save_as_table_that_creates_its_table_is_analyzed() -> None:
    way = Way(None)
    for _ in range(2):
        with pytest.raises(LookedAtError):
            await way.goes(lambda s: numbers(s).write.mode("append").saveAsTable("t"))
    assert way.engine.lookups == 2
    assert {op.kind for op in way.foreseen} == {Kind.CREATE_TABLE_AS}


async def test_append_of_strings_is_analyzed_if_they_would_become_timestamps() -> None:
    by_name = lambda s: rows(s).writeTo("t").append()  # noqa: E731
    by_position = lambda s: rows(s).write.insertInto("t")  # noqa: E731
    moment, text = Column("x", "timestamp"), Column("b", "string")
    for columns, program, looks in (
        ((Column("a", "int"), text), by_name, False),
        ((moment, Column("a", "int"), text), by_name, False),
        ((Column("a", "int"), Column("b", "timestamp")), by_name, True),
        ((moment, text), by_position, False),
        ((text, moment), by_position, True),
        ((Column("B", "struct<at:timestamp>"),), by_name, True),
    ):
        way = Way(columns)
        if looks:
            with pytest.raises(LookedAtError):
                await way.goes(program)
        else:
            assert (await way.goes(program)).rests_on == {T}


async def test_append_of_timestamps_counts_as_one_without_strings() -> None:
    moments = StructType().add("at", TimestampType())
    op = await Way().goes(lambda s: s.createDataFrame([], moments).writeTo("t").append())
    assert op.rests_on == frozenset()


async def test_append_redefines_its_table_if_a_setting_lets_the_schema_evolve() -> None:
    settings = Settings(confs=(("spark.databricks.delta.schema.autoMerge.enabled", "true"),))
    op = await Way().goes(lambda s: numbers(s).writeTo("t").append(), settings)
    assert op.redefines == {T}


async def test_rows_sent_before_their_plan_are_treated_like_rows_in_it() -> None:
    stream = recorded(PLAIN["arrow"][0]).command.write_operation_v2.input.to_df.input
    plan = recorded(PLAIN["arrow"][0])
    relation = plan.command.write_operation_v2.input.to_df.input
    relation.chunked_cached_local_relation.dataHashes.append("hash")
    size = len(stream.local_relation.data)
    way = Way(blobs={"part": stream.local_relation.data})
    session: Any = SimpleNamespace(
        entries=[SimpleNamespace(entry=ArtifactEntry("cache/hash", ("part",), size))]
    )
    taken = await way.taken(plan, session)
    assert taken.stands_alone
    assert taken.reading == read_plan(taken.plan)
    assert not (await way.taken(plan, None)).stands_alone


READERS = {each.__code__: each.__name__ for each in (opened, read_opened, read_plan, tokenize)}
"""The functions that read a plan.

`read_plan` is for callers that do not know if it is compressed.
"""


class Met:
    """Counts calls of `READERS`, each generator once."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._frames: list[FrameType] = []

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        name = READERS.get(frame.f_code)
        if event == "call" and name and all(each is not frame for each in self._frames):
            self._frames.append(frame)
            self.counts[name] += 1

    def __enter__(self) -> Met:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


ONCE = {"opened": 1, "read_opened": 1, "tokenize": 1}


@pytest.mark.parametrize("name", PLAIN)
async def test_plan_is_read_once_on_its_way_into_the_log(name: str) -> None:
    way = Way([Column("a", "int"), Column("b", "string"), Column("k", "bigint")])
    with Met() as met:
        await way.goes(PLAIN[name][0])
    assert met.counts == ONCE


async def test_plan_of_many_steps_is_opened_at_most_twice_before_it_is_analyzed() -> None:
    """The second time is for the part beside its input, which is analyzed separately."""
    way = Way([Column("a", "int")])
    with Met() as met, pytest.raises(LookedAtError):
        await way.goes(lambda s: s.createDataFrame([(1,)], ["a"]).filter("a > 1").writeTo(
            "t").append())  # fmt: skip
    assert met.counts["opened"] <= 2


async def test_request_whose_plan_was_not_read_before_is_read_once() -> None:
    classifying = Classifying(Inline(), Rules.builtin(), Bounds(), nobody, nobody)
    plan = recorded(PLAIN["writeTo"][0]).SerializeToString()
    with Met() as met:
        request = await classifying.with_read(Request("r", SentPlan(plan), "f"))
        await classifying.request(request, Settings())
        assert (await classifying.with_read(request)) is request
    assert met.counts == ONCE
