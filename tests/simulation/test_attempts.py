"""A write on its way into the log: known first, looked up again at the log's end, made anew.

The ring is a, b, c. Where b lags, its Spark takes seconds for a statement; DDL goes to all at the
same time, so that it is acknowledged when a alone has it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dmq import LogUnavailableError
from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Settings
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import DONE_BEFORE, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.route.attempts import ATTEMPTS_MAX, Attempts
from haproc.route.model import Request, SentSql
from tests.simulation.directed import Stage, ddl, parallel, story
from tests.simulation.life import as_made
from tests.simulation.looking import rows, service
from tests.simulation.network import Refused
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import operation

CREATE = "CREATE TABLE t (x)"
T = frozenset({"spark_catalog.default.t"})


def define(op_id: str, sql: str, kind: Kind = Kind.CREATE_TABLE) -> Operation:
    """DDL on t that is acknowledged once a has it."""
    return replace(parallel("a", op_id, sql), kind=kind, writes=T)


async def lagging(stage: Stage, *operations: Operation, by_s: float = 5) -> None:
    """All of these are acknowledged by a, and b is behind by seconds for each."""
    stage.node("b").spark.statement_s = by_s
    for op in operations:
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED


def sql(op_id: str, text: str, **fields: Any) -> Request:
    return Request(op_id, SentSql(text), op_id, timeout_s=60, **fields)


def held(stage: Stage, name: str) -> list[tuple[object, ...]]:
    return stage.node(name).spark.dump()["t"]


def records(stage: Stage, op_id: str) -> list[Operation]:
    return [m for m in stage.messages() if isinstance(m, Operation) and m.id == op_id]


# -- a cluster that lags -----------------------------------------------------------------------


def test_rows_for_a_table_that_was_acknowledged_elsewhere_wait_for_it() -> None:
    async def tell(stage: Stage) -> None:
        await lagging(stage, define("create", CREATE))
        assert "t" not in stage.tables("b")
        answer = await service(stage, "b").execute(rows("r", {"x": "1"}))
        assert (answer.report.outcomes["b"], answer.affected_rows) == ("applied", 1)
        stage.node("b").spark.statement_s = 0
        await stage.settle()
        assert held(stage, "c") == [("1",)]

    story(tell)


def test_rows_that_fit_the_table_as_it_is_at_the_log_s_end_are_taken() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        wider = define("wider", "ALTER TABLE t ADD COLUMN y", Kind.ALTER_TABLE)
        await lagging(stage, wider)
        await service(stage, "b").execute(rows("r", {"x": "1", "y": "2"}))
        stage.node("b").spark.statement_s = 0
        await stage.settle()
        assert held(stage, "c") == [("1", "2")]

    story(tell)


def test_failure_that_stays_at_the_log_s_end_is_final_and_leaves_nothing_behind() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        began = stage.now
        with pytest.raises(RequestError) as caught:
            await service(stage, "b").execute(rows("r", {"x": "1"}, table="nowhere"))
        assert caught.value.kind is FailureKind.APPLICATION
        with pytest.raises(RequestError) as caught:
            await service(stage, "b").execute(rows("r", {"z": "1"}))
        assert caught.value.error_class == "HAPROC_ROWS_MISFIT"
        assert stage.now - began < 1
        assert records(stage, "r") == []

    story(tell)


def test_failure_while_others_write_all_the_time_is_told_after_the_second_look() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        stage.node("b").spark.statement_s = 1

        async def others() -> None:
            for n in range(100):
                await stage.submit("a", operation(f"o{n}", Kind.DELETE, "DELETE FROM t", "a"))

        writing = asyncio.ensure_future(others())
        await asyncio.sleep(3)
        doors = service(stage, "b")
        with pytest.raises(RequestError) as caught:
            await doors.execute(rows("r", {"x": "1"}, table="nowhere"))
        assert caught.value.kind is FailureKind.APPLICATION
        assert doors._making._engine.looks == 2  # type: ignore[attr-defined]
        writing.cancel()

    story(tell)


# -- what the log has already ------------------------------------------------------------------


def test_repeat_of_rows_is_their_outcome_whatever_became_of_the_table() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        first = await service(stage, "a").execute(rows("r", {"x": "1"}))
        drop = define("drop", "DROP TABLE t", Kind.DROP_TABLE)
        await stage.submit("a", drop)
        other = define("other", "CREATE TABLE t (other)")
        for change in (drop, other):
            await stage.submit("a", change)
            await stage.ready("a", "b", "c")
            for name in "abc":
                again = await service(stage, name).execute(rows("r", {"x": "1"}, age_s=1.0))
                assert again.report.offset == first.report.offset
                assert (again.report.outcomes[name], again.affected_rows) == ("applied", 1)

    story(tell)


def test_repeat_that_the_rules_refuse_by_now_is_still_its_outcome() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        text = "INSERT INTO t VALUES ('1')"
        first = await service(stage, "a").execute(sql("w", text))
        await stage.ready("a", "b", "c")
        strict = service(stage, "b", rules="[{kind: insert, refuse: 'no more'}]")
        again = await strict.execute(sql("w", text, age_s=1.0))
        assert again.report.offset == first.report.offset
        with pytest.raises(RequestError, match="no more"):
            await strict.execute(sql("other", text))

    story(tell)


@pytest.mark.parametrize("age_s", [0.0, 1.0])
def test_repeat_where_the_log_was_not_read_so_far_is_still_its_outcome(age_s: float) -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        log = stage.replica("b").core.log
        read, go_on = log.read, asyncio.Event()

        async def late(*given: Any, **named: Any) -> Any:
            found = await read(*given, **named)
            await go_on.wait()
            return found

        log.read = late  # type: ignore[method-assign]
        text = "INSERT INTO t VALUES ('1')"
        first = await service(stage, "a").execute(sql("w", text))
        strict = service(stage, "b", rules="[{kind: insert, refuse: 'no more'}]")
        asyncio.get_running_loop().call_later(2, go_on.set)
        again = await strict.execute(sql("w", text, age_s=age_s))
        assert again.report.offset == first.report.offset

    story(tell)


def test_refusal_while_the_log_is_away_is_told_to_a_first_attempt_only() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        stage.ring.weather.log_away = True
        with pytest.raises(RequestError) as caught:
            await service(stage, "b").execute(sql("w", "SELECT 1; SELECT 2"))
        assert caught.value.kind is FailureKind.REFUSED
        with pytest.raises(RequestError) as caught:
            await service(stage, "b").execute(sql("w", "SELECT 1; SELECT 2", age_s=1.0))
        told = caught.value
        assert (told.kind, told.outcome) == (FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN)
        stage.ring.weather.log_away = False

    story(tell)


def test_same_id_of_two_users_is_two_writes_and_another_statement_is_refused() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        for user, name in (("ada", "a"), ("bob", "b"), ("ada", "c")):
            text = f"INSERT INTO t VALUES ('{user}')"
            await service(stage, name).execute(replace(sql("w", text, user=user), fingerprint=user))
        with pytest.raises(RequestError) as caught:
            await service(stage, "b").execute(sql("w", "SELECT 1", user="ada"))
        assert caught.value.error_class == "HAPROC_REQUEST_ID_REUSED"
        await stage.settle()
        assert held(stage, "c") == [("ada",), ("bob",)]

    story(tell)


# -- what a write rests on ---------------------------------------------------------------------

COPY = "INSERT INTO copies SELECT x FROM t"


async def tables(stage: Stage) -> None:
    await stage.submit("a", ddl("a", "copies", "CREATE TABLE copies (x)"))
    await stage.submit("a", ddl("a"))
    await stage.submit("a", operation("one", Kind.INSERT, "INSERT INTO t VALUES ('1')", "a"))
    await stage.ready("a", "b", "c")


def between(stage: Stage, *changes: Operation) -> Any:
    """One of these comes between each look of a door and what it appends."""
    left = list(changes)

    async def meanwhile() -> None:
        if left:
            assert (await stage.submit("c", left.pop(0))).status is OutcomeStatus.APPLIED

    return meanwhile


def rename(op_id: str, name: str, to: str) -> Operation:
    sql = f"ALTER TABLE {name} RENAME TO {to}"
    return ddl("c", op_id, sql, kind=Kind.ALTER_TABLE, writes=T)


def test_write_whose_table_was_defined_anew_after_the_look_is_made_anew() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        doors = service(stage, "b", between(stage, rename("r1", "t", "u"), rename("r2", "u", "t")))
        answer = await doors.execute(sql("w", COPY))
        assert answer.report.outcomes["b"] == "applied"
        assert len(records(stage, "w")) == 3
        await stage.settle()
        for node in stage.ring.nodes.values():
            node.kill()
        await stage.settle()
        assert [stage.node(n).spark.dump()["copies"] for n in "abc"] == [[("1",)]] * 3
        for name in "abc":
            again = await service(stage, name).execute(sql("w", COPY, age_s=9.0))
            assert again.report.offset == answer.report.offset

    story(tell)


def test_retry_that_finds_only_a_stale_attempt_appends_its_own() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.at("b", Step.APPEND_AFTER, Node.kill)
        doors = service(stage, "b", between(stage, rename("r1", "t", "u"), rename("r2", "u", "t")))
        life = stage.node("b").life
        assert life is not None

        async def work(replica: Replica) -> object:
            return await doors.execute(sql("w", COPY))

        with pytest.raises(Refused):
            await life.call(work)
        await stage.submit("c", rename("r3", "u", "t"))
        answer = await service(stage, "a").execute(sql("w", COPY, age_s=1.0))
        assert answer.report.outcomes["a"] == "applied"
        assert len(records(stage, "w")) == 2
        await stage.settle()
        assert [stage.node(n).spark.dump()["copies"] for n in "abc"] == [[("1",)]] * 3

    story(tell)


def test_write_that_is_stale_again_and_again_is_given_up_and_was_not_sent() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        names = ["t", "u"] * ATTEMPTS_MAX
        steps = [rename(f"r{n}", names[n], names[n + 1]) for n in range(ATTEMPTS_MAX)]
        with pytest.raises(RequestError) as caught:
            await service(stage, "b", between(stage, *steps)).execute(sql("w", COPY))
        told = caught.value
        assert (told.error_class, told.outcome) == ("HAPROC_REDEFINED", WriteOutcome.NOT_SENT)
        assert told.kind is FailureKind.AVAILABILITY
        await stage.settle()
        assert [stage.node(n).spark.dump()["copies"] for n in "abc"] == [[]] * 3

    story(tell)


def test_writes_that_define_what_the_others_rest_on_all_get_through() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)

        async def client(name: str) -> None:
            attempts = Attempts(stage.replica(name))
            for n in range(5):
                asked = sql(f"{name}{n}", "", age_s=0.0)

                async def make(op_id: str = asked.id) -> Operation:
                    looked_at = (await attempts.ground()).low
                    await asyncio.sleep(0.1)
                    text = f"ALTER TABLE t ADD COLUMN {op_id}"
                    op = ddl(name, op_id, text, kind=Kind.ALTER_TABLE, writes=T)
                    op = replace(op, analyzed_to=looked_at, rests_on=T)
                    return as_made(op, stage.replica(name).writes.since())

                done = await attempts.write(asked, make)
                assert done.outcome.status is OutcomeStatus.APPLIED

        await asyncio.gather(*(client(name) for name in "abc"))
        await stage.settle()
        assert len(stage.node("a").spark.columns("t")) == 16

    story(tell)


def test_restart_while_the_log_fails_again_and_again_judges_each_record_once() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        answer = await service(stage, "b").execute(sql("w", COPY))
        await stage.submit("c", rename("r1", "t", "u"))
        await stage.settle()
        stage.node("b").kill()
        stage.node("b").start()
        log, calls = stage.replica("b").core.log, 0
        read = log.read

        async def few(start: int, **_: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 5 == 0:
                raise LogUnavailableError("away")
            return await read(start, records_max=2)

        log.read = few  # type: ignore[method-assign]
        await stage.settle()
        offset = answer.report.offset
        assert offset is not None
        known = stage.replica("b").core.outcomes.at(offset)
        assert known is not None and known.outcome is DONE_BEFORE

    story(tell)


def test_write_that_evolves_a_schema_dates_what_is_remembered_of_definitions() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        core = stage.replica("a").core
        settings = Settings(confs=(("spark.databricks.delta.schema.autoMerge.enabled", "true"),))
        plain = operation("p", Kind.INSERT, "INSERT INTO t SELECT '2'", "a", writes=T)
        before = core.watermarks.definitions_applied
        await stage.submit("a", plain)
        assert core.watermarks.definitions_applied == before
        await stage.submit("a", replace(plain, id="e", settings=settings))
        assert core.watermarks.definitions_applied == before + 1

    story(tell)


def test_look_on_a_cluster_that_is_far_behind_waits_until_it_is_near_enough() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("b").spark.held.add("t")
        others = [
            operation(f"o{n}", Kind.DELETE, "DELETE FROM t WHERE x = 2", "a") for n in range(15)
        ]
        for op in others:
            await stage.submit("a", replace(op, writes=frozenset({"t"})))
        ground = asyncio.ensure_future(Attempts(stage.replica("b")).ground(frozenset({"t"})))
        await asyncio.sleep(2)
        assert not ground.done()
        stage.node("b").spark.held.clear()
        assert (await ground).low >= stage.ring.store.end - 5

    story(tell, limits=replace(LIMITS, window_records=40))


# -- time that is over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("SELECT * FROM t", WriteOutcome.NOT_SENT),
        ("UPDATE t SET x = 1", WriteOutcome.UNKNOWN),
    ],
)
def test_request_whose_time_is_over_is_of_unknown_outcome_only_if_it_writes(
    text: str, outcome: WriteOutcome
) -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        stage.node("a").spark.statement_s = 100
        doors: Any = service(stage, "a")
        doors._spark_session = lambda *_: asyncio.sleep(100)
        with pytest.raises(RequestError) as caught:
            await doors.execute(replace(sql("r", text), timeout_s=2))
        assert caught.value.error_class == "HAPROC_TIMEOUT"
        assert caught.value.outcome is outcome
        stage.node("a").spark.statement_s = 0

    story(tell)


def test_request_whose_time_is_over_while_spark_parses_it_was_not_sent() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        doors: Any = service(stage, "a")
        doors._classifying._recognised = lambda *_: asyncio.sleep(100)
        for age_s, outcome in ((0.0, WriteOutcome.NOT_SENT), (1.0, WriteOutcome.UNKNOWN)):
            with pytest.raises(RequestError) as caught:
                await doors.execute(
                    replace(sql("r", "UPDATE t SET x = 1"), timeout_s=2, age_s=age_s)
                )
            assert caught.value.error_class == "HAPROC_TIMEOUT"
            assert caught.value.outcome is outcome

            async def away(*_: Any) -> None:
                raise EngineError(ErrorKind.AVAILABILITY, "gone")

            doors._classifying._recognised = away
            with pytest.raises(RequestError) as caught:
                await doors.execute(replace(sql("r", "UPDATE t SET x = 1"), age_s=age_s))
            assert caught.value.outcome is outcome
            doors._classifying._recognised = lambda *_: asyncio.sleep(100)

    story(tell)
