"""Tests of stale operations: judged by the log alone, the same for every reader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.engine.interface import Settings
from haproc.engine.statement import SqlText
from haproc.replicate.log_state.definitions import (
    ANYTHING,
    Definitions,
    reach,
    records_needed,
    redefined_by,
)
from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, RecordJudgement
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation
from tests.readings.classified import classified
from tests.unit.operations import copy, ddl, insert, unknown_tables, update

WINDOW = 16
REACH = reach(WINDOW)


def looked(op: Operation, analyzed_to: int, *rests_on: str) -> Operation:
    """Return the operation as it is in the log, resting on these names."""
    return replace(
        op,
        since=0,
        window=WINDOW,
        analyzed_to=analyzed_to,
        rests_on=frozenset(rests_on),
        redefines=redefined_by(op),
    )


def sent(op: Operation) -> Operation:
    return replace(op, since=0, window=WINDOW, redefines=redefined_by(op))


def after(*log: Operation) -> Definitions:
    definitions = Definitions(WINDOW)
    for offset, op in enumerate(log):
        definitions.note(offset, op)
    return definitions


# -- the judgement -----------------------------------------------------------------------------


def test_stale_operation_without_an_analysis_is_never_stale() -> None:
    assert after(sent(unknown_tables("m"))).stale(1, sent(insert("i", "t"))) is False


def test_stale_operation_has_a_definition_of_its_names_since_its_analysis() -> None:
    definitions = after(sent(insert("i", "t")), sent(ddl("v", "a")))
    assert definitions.stale(2, looked(copy("c", "v", "t"), 1, "v", "t")) is True
    assert definitions.stale(2, looked(copy("c", "v", "t"), 2, "v", "t")) is False
    assert definitions.stale(2, looked(copy("c", "s", "t"), 0, "s", "t")) is False


def test_stale_operation_has_a_statement_of_unknown_effect_since_its_analysis() -> None:
    definitions = after(sent(unknown_tables("m")))
    assert definitions.stale(1, looked(copy("c", "s", "t"), 0, "s")) is True
    assert definitions.stale(1, looked(copy("c", "s", "t"), 1, "s")) is False


def test_operation_that_rests_on_unknown_names_is_stale_after_any_definition() -> None:
    definitions = after(sent(insert("i", "t")), sent(ddl("v", "a")), sent(insert("j", "t")))
    assert definitions.stale(3, looked(copy("c", "s", "t"), 1, "s", ANYTHING)) is True
    assert definitions.stale(3, looked(copy("c", "s", "t"), 2, "s", ANYTHING)) is False


def test_operation_analyzed_before_the_remembered_range_is_stale() -> None:
    op = looked(copy("c", "s", "t"), 10, "s")
    assert Definitions(WINDOW).stale(10 + REACH, op) is False
    assert Definitions(WINDOW).stale(11 + REACH, op) is True


def test_staleness_is_unknown_if_the_analysis_is_before_the_first_read_record() -> None:
    definitions = Definitions(WINDOW)
    definitions.begin(5)
    assert definitions.stale(6, looked(copy("c", "s", "t"), 4, "s")) is None
    assert definitions.stale(6, looked(copy("c", "s", "t"), 5, "s")) is False
    definitions.note(6, sent(ddl("s", "a")))
    assert definitions.stale(7, looked(copy("c", "s", "t"), 4, "s")) is True


def test_operation_admitted_before_a_fence_and_recorded_after_it_is_stale() -> None:
    definitions = after(sent(insert("i", "t")))
    definitions.note(1, Fence("job/7"))
    assert definitions.stale(2, looked(insert("w", "t"), 1, "job/7")) is True
    assert definitions.stale(2, looked(insert("w", "t"), 2, "job/7")) is False
    assert definitions.stale(2, looked(insert("w", "t"), 1, "job/8")) is False
    assert definitions.stale(2, sent(insert("w", "t"))) is False


def test_unchanged_holds_only_within_the_remembered_range_and_without_a_definition() -> None:
    definitions = after(sent(ddl("v", "a")), *[sent(insert("i", "t"))] * 9)
    assert definitions.unchanged(["v"], 10 - REACH)
    assert not definitions.unchanged(["t"], 9 - REACH)
    definitions.note(10, sent(ddl("v", "a")))
    assert not definitions.unchanged(["v"], 10)
    assert definitions.unchanged(["t"], 10)


# -- what an operation defines -----------------------------------------------------------------

DEFINES: list[tuple[str, frozenset[str] | None]] = [
    ("CREATE TABLE t (x INT)", frozenset({"spark_catalog.default.t"})),
    ("CREATE OR REPLACE VIEW v AS SELECT * FROM t", frozenset({"spark_catalog.default.v"})),
    ("DROP VIEW s.v", frozenset({"spark_catalog.s.v"})),
    (
        "ALTER TABLE s.t RENAME TO s.u",
        frozenset({"spark_catalog.s.t", "spark_catalog.s.u"}),
    ),
    ("ALTER TABLE t ADD COLUMN y INT", frozenset({"spark_catalog.default.t"})),
    ("DROP SCHEMA s CASCADE", None),
    ("CREATE FUNCTION f(x INT) RETURNS INT RETURN x + 1", None),
    ("DROP FUNCTION f", None),
    ("INSERT INTO t VALUES (1)", frozenset()),
    ("INSERT INTO t SELECT * FROM s", frozenset()),
    ("WITH c AS (SELECT 1) INSERT INTO t SELECT * FROM c", frozenset()),
    ("INSERT INTO t SELECT 'with schema evolution (' FROM s", frozenset()),
    (
        "INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM s",
        frozenset({"spark_catalog.default.t"}),
    ),
    (
        "INSERT INTO t WITH /**/ ('merge\\u0053chema' = 'true') SELECT * FROM s",
        frozenset({"spark_catalog.default.t"}),
    ),
    (
        "MERGE WITH SCHEMA EVOLUTION INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT *",
        frozenset({"spark_catalog.default.t"}),
    ),
    ("DELETE FROM t WHERE x = 1", frozenset()),
    ("UPDATE t SET x = 1", frozenset()),
    ("OPTIMIZE t", frozenset()),
]


def made(sql: str, settings: Settings = Settings()) -> Operation:  # noqa: B008
    statement = classified(sql)
    return replace(
        update("x", "t"),
        kind=statement.kind,
        write=SqlText(statement.sql),
        writes=statement.writes,
        reads=statement.reads,
        tables_known=statement.tables_known,
        insert=statement.insert,
        settings=settings,
    )


@pytest.mark.parametrize(("sql", "names"), DEFINES)
def test_redefined_by_returns_the_names_that_a_statement_may_define(
    sql: str, names: frozenset[str] | None
) -> None:
    assert redefined_by(made(sql)) == names


def test_redefined_by_of_a_statement_with_unknown_reads_is_none_unless_its_writes_are_known() -> (
    None
):
    read = replace(made("INSERT INTO t SELECT * FROM s"), tables_known=False)
    created = replace(made("CREATE TABLE t AS SELECT 1"), tables_known=False)
    assert redefined_by(read) is None
    assert redefined_by(read, writes_known=True) == frozenset()
    assert redefined_by(created, writes_known=True) == {"spark_catalog.default.t"}


def test_redefined_by_of_inserts_with_schema_merging_is_their_table() -> None:
    key = "spark.databricks.delta.schema.autoMerge.enabled"
    on, off = Settings(confs=((key, "true"),)), Settings(confs=((key, "false"),))
    for sql in ("INSERT INTO t VALUES (1)", "INSERT INTO t SELECT * FROM s"):
        assert redefined_by(made(sql, on)) == {"spark_catalog.default.t"}
        assert redefined_by(made(sql, off)) == frozenset()


# -- any log, any reader -----------------------------------------------------------------------

records = st.lists(
    st.tuples(
        st.sampled_from(["define", "anything", "rest", "plain"]),
        st.sampled_from("tuv"),
        st.integers(0, REACH + 2),  # how long ago it was looked
        st.sampled_from(["one", "two", "three"]),
    ),
    max_size=50,
)


def operations(log: list[tuple[str, str, int, str]]) -> list[Operation]:
    found = []
    for offset, (record_kind, table, ago, op_id) in enumerate(log):
        looked_at = max(0, offset - ago)
        match record_kind:
            case "define":
                op = replace(ddl(table, "a"), id=op_id)
            case "anything":
                op = replace(unknown_tables(op_id), id=op_id)
            case _:
                op = copy(op_id, table, "w")
        op = looked(op, looked_at, table) if record_kind != "plain" else sent(op)
        found.append(replace(op, since=max(0, offset - WINDOW)))
    return found


def judged(log: list[Operation], low: int, start: int) -> list[str]:
    """Return a reader's judgements of the log from ``low`` on, when it starts to read at
    ``start``.
    """
    definitions, window = Definitions(WINDOW), IdempotencyWindow(WINDOW)
    definitions.begin(start)
    found = []
    for offset, op in list(enumerate(log))[start:]:
        stale = definitions.stale(offset, op) if offset >= low - WINDOW else None
        definitions.note(offset, op)
        if offset < low - WINDOW:
            continue
        assert stale is not None
        judgements = "stale" if stale else window.see(offset, op.key, op.since, op.window).name
        if offset >= low:
            found.append(judgements)
    return found


@given(records, st.data())
def test_staleness_and_repetition_are_judged_the_same_by_a_reader_that_starts_anywhere(
    log: list[tuple[str, str, int, str]], data: st.DataObject
) -> None:
    whole = operations(log)
    low = data.draw(st.integers(0, len(whole)))
    start = max(0, low - records_needed(WINDOW))
    assert judged(whole, low, start) == judged(whole, 0, 0)[low:]


@given(records)
def test_operation_that_is_not_stale_has_no_definition_since_its_analysis_and_counts_once(
    log: list[tuple[str, str, int, str]],
) -> None:
    whole = operations(log)
    judgements = judged(whole, 0, 0)
    for offset, (op, is_) in enumerate(zip(whole, judgements, strict=True)):
        if is_ == "stale" or op.analyzed_to is None:
            continue
        between = whole[op.analyzed_to : offset]
        assert all(o.redefines is not None for o in between)
        assert not any((o.redefines or frozenset()) & op.rests_on for o in between)
    # The first that is not stale counts, within the window.
    for offset, (op, is_) in enumerate(zip(whole, judgements, strict=True)):
        if is_ == "stale":
            continue
        begin = max(0, offset - WINDOW)
        copies = [
            o for o in range(begin, offset) if whole[o].id == op.id and judgements[o] != "stale"
        ]
        assert (is_ == RecordJudgement.REPEATED.name) is bool(copies)
