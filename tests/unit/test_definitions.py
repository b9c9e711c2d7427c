"""Which operations are stale: by the log alone, for every reader, restarted or not."""

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
    """The operation, as it is in the log, resting on these."""
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


def test_stale_nothing_looked_up_never() -> None:
    assert after(sent(unknown_tables("m"))).stale(1, sent(insert("i", "t"))) is False


def test_stale_definition_of_what_it_rests_on_in_between() -> None:
    definitions = after(sent(insert("i", "t")), sent(ddl("v", "a")))
    assert definitions.stale(2, looked(copy("c", "v", "t"), 1, "v", "t")) is True
    assert definitions.stale(2, looked(copy("c", "v", "t"), 2, "v", "t")) is False
    assert definitions.stale(2, looked(copy("c", "s", "t"), 0, "s", "t")) is False


def test_stale_something_that_may_define_anything_in_between() -> None:
    definitions = after(sent(unknown_tables("m")))
    assert definitions.stale(1, looked(copy("c", "s", "t"), 0, "s")) is True
    assert definitions.stale(1, looked(copy("c", "s", "t"), 1, "s")) is False


def test_stale_what_rests_on_more_than_is_known_by_any_definition_in_between() -> None:
    definitions = after(sent(insert("i", "t")), sent(ddl("v", "a")), sent(insert("j", "t")))
    assert definitions.stale(3, looked(copy("c", "s", "t"), 1, "s", ANYTHING)) is True
    assert definitions.stale(3, looked(copy("c", "s", "t"), 2, "s", ANYTHING)) is False


def test_stale_look_farther_back_than_is_remembered() -> None:
    op = looked(copy("c", "s", "t"), 10, "s")
    assert Definitions(WINDOW).stale(10 + REACH, op) is False
    assert Definitions(WINDOW).stale(11 + REACH, op) is True


def test_stale_look_before_what_was_read_is_not_known() -> None:
    definitions = Definitions(WINDOW)
    definitions.begin(5)
    assert definitions.stale(6, looked(copy("c", "s", "t"), 4, "s")) is None
    assert definitions.stale(6, looked(copy("c", "s", "t"), 5, "s")) is False
    definitions.note(6, sent(ddl("s", "a")))
    assert definitions.stale(7, looked(copy("c", "s", "t"), 4, "s")) is True


def test_stale_what_was_let_in_before_a_fence_and_stands_behind_it() -> None:
    definitions = after(sent(insert("i", "t")))
    definitions.note(1, Fence("job/7"))
    assert definitions.stale(2, looked(insert("w", "t"), 1, "job/7")) is True
    assert definitions.stale(2, looked(insert("w", "t"), 2, "job/7")) is False
    assert definitions.stale(2, looked(insert("w", "t"), 1, "job/8")) is False
    assert definitions.stale(2, sent(insert("w", "t"))) is False


def test_unchanged_only_what_is_remembered_and_was_not_defined_since() -> None:
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
def test_redefined_by_says_what_a_statement_may_define_anew(
    sql: str, names: frozenset[str] | None
) -> None:
    assert redefined_by(made(sql)) == names


def test_redefined_by_what_reads_unknown_tables_is_what_it_writes() -> None:
    read = replace(made("INSERT INTO t SELECT * FROM s"), tables_known=False)
    made_anew = replace(made("CREATE TABLE t AS SELECT 1"), tables_known=False)
    assert redefined_by(read) is None
    assert redefined_by(read, writes_known=True) == frozenset()
    assert redefined_by(made_anew, writes_known=True) == {"spark_catalog.default.t"}


def test_redefined_by_session_that_merges_schemas_makes_every_insert_a_definition() -> None:
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
    for offset, (what, table, ago, op_id) in enumerate(log):
        looked_at = max(0, offset - ago)
        match what:
            case "define":
                op = replace(ddl(table, "a"), id=op_id)
            case "anything":
                op = replace(unknown_tables(op_id), id=op_id)
            case _:
                op = copy(op_id, table, "w")
        op = looked(op, looked_at, table) if what != "plain" else sent(op)
        found.append(replace(op, since=max(0, offset - WINDOW)))
    return found


def judged(log: list[Operation], low: int, start: int) -> list[str]:
    """What a reader makes of the log from ``low`` on that begins to read at ``start``."""
    definitions, window = Definitions(WINDOW), IdempotencyWindow(WINDOW)
    definitions.begin(start)
    found = []
    for offset, op in list(enumerate(log))[start:]:
        stale = definitions.stale(offset, op) if offset >= low - WINDOW else None
        definitions.note(offset, op)
        if offset < low - WINDOW:
            continue
        assert stale is not None
        told = "stale" if stale else window.see(offset, op.key, op.since, op.window).name
        if offset >= low:
            found.append(told)
    return found


@given(records, st.data())
def test_stale_and_repeated_are_judged_the_same_by_whoever_reads_on_from_anywhere(
    log: list[tuple[str, str, int, str]], data: st.DataObject
) -> None:
    whole = operations(log)
    low = data.draw(st.integers(0, len(whole)))
    start = max(0, low - records_needed(WINDOW))
    assert judged(whole, low, start) == judged(whole, 0, 0)[low:]


@given(records)
def test_stale_never_rests_on_what_was_defined_meanwhile_and_ids_count_once(
    log: list[tuple[str, str, int, str]],
) -> None:
    whole = operations(log)
    told = judged(whole, 0, 0)
    for offset, (op, is_) in enumerate(zip(whole, told, strict=True)):
        if is_ == "stale" or op.analyzed_to is None:
            continue
        between = whole[op.analyzed_to : offset]
        assert all(o.redefines is not None for o in between)
        assert not any((o.redefines or frozenset()) & op.rests_on for o in between)
    # The first that is not stale counts, within the window.
    for offset, (op, is_) in enumerate(zip(whole, told, strict=True)):
        if is_ == "stale":
            continue
        begin = max(0, offset - WINDOW)
        copies = [o for o in range(begin, offset) if whole[o].id == op.id and told[o] != "stale"]
        assert (is_ == RecordJudgement.REPEATED.name) is bool(copies)
