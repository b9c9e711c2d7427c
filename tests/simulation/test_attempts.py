"""Tests of a write on its way into the log: known outcomes, a second look, stale attempts.

The ring is a, b, c. If b lags, its Spark takes seconds for a statement. DDL runs on all clusters at
the same time, so it is acknowledged as soon as a has it.
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
from tests.simulation.directed import Stage, as_story, ddl, parallel
from tests.simulation.life import as_made
from tests.simulation.looking import rows, service
from tests.simulation.network import Refused
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import operation

CREATE = "CREATE TABLE t (x)"
T = frozenset({"spark_catalog.default.t"})


def define(op_id: str, sql: str, kind: Kind = Kind.CREATE_TABLE) -> Operation:
    """Return DDL on t that is acknowledged as soon as a has it."""
    return replace(parallel("a", op_id, sql), kind=kind, writes=T)


async def lagging(stage: Stage, *operations: Operation, by_s: float = 5) -> None:
    """Have a acknowledge all of these; b is seconds behind for each."""
    stage.node("b").spark.statement_s = by_s
    for op in operations:
        await stage.apply("a", op)


def sql(op_id: str, text: str, **fields: Any) -> Request:
    return Request(op_id, SentSql(text), op_id, timeout_s=60, **fields)


def held(stage: Stage, name: str) -> list[tuple[object, ...]]:
    return stage.node(name).spark.dump()["t"]


def records(stage: Stage, op_id: str) -> list[Operation]:
    return [m for m in stage.records(Operation) if m.id == op_id]


# -- a cluster that lags -----------------------------------------------------------------------


@as_story()
async def test_rows_for_a_table_acknowledged_at_another_cluster_wait_for_the_table(
    stage: Stage,
) -> None:
    await lagging(stage, define("create", CREATE))
    assert "t" not in stage.tables("b")
    answer = await service(stage, "b").execute(rows("r", {"x": "1"}))
    assert (answer.report.outcomes["b"], answer.affected_rows) == ("applied", 1)
    stage.node("b").spark.statement_s = 0
    await stage.settle()
    assert held(stage, "c") == [("1",)]


@as_story()
async def test_rows_that_fit_the_table_at_the_end_of_the_log_are_accepted(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    wider = define("wider", "ALTER TABLE t ADD COLUMN y", Kind.ALTER_TABLE)
    await lagging(stage, wider)
    await service(stage, "b").execute(rows("r", {"x": "1", "y": "2"}))
    stage.node("b").spark.statement_s = 0
    await stage.settle()
    assert held(stage, "c") == [("1", "2")]


@as_story()
async def test_failure_that_remains_at_the_end_of_the_log_is_final_and_appends_nothing(
    stage: Stage,
) -> None:
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


@as_story()
async def test_failure_during_constant_writes_of_others_is_returned_after_the_second_look(
    stage: Stage,
) -> None:
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


# -- what the log has already ------------------------------------------------------------------


@as_story()
async def test_repeated_rows_return_their_outcome_after_the_table_was_replaced(
    stage: Stage,
) -> None:
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


@as_story()
async def test_repeated_write_that_a_new_rule_refuses_returns_its_outcome(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    text = "INSERT INTO t VALUES ('1')"
    first = await service(stage, "a").execute(sql("w", text))
    await stage.ready("a", "b", "c")
    strict = service(stage, "b", rules="[{kind: insert, refuse: 'no more'}]")
    again = await strict.execute(sql("w", text, age_s=1.0))
    assert again.report.offset == first.report.offset
    with pytest.raises(RequestError, match="no more"):
        await strict.execute(sql("other", text))


@pytest.mark.parametrize("age_s", [0.0, 1.0])
@as_story()
async def test_repeated_write_waits_until_the_log_is_read_and_returns_its_outcome(
    stage: Stage, age_s: float
) -> None:
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


@as_story()
async def test_refusal_without_the_log_is_final_for_a_first_attempt_only(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.ring.weather.log_away = True
    with pytest.raises(RequestError) as caught:
        await service(stage, "b").execute(sql("w", "SELECT 1; SELECT 2"))
    assert caught.value.kind is FailureKind.REFUSED
    with pytest.raises(RequestError) as caught:
        await service(stage, "b").execute(sql("w", "SELECT 1; SELECT 2", age_s=1.0))
    error = caught.value
    assert (error.kind, error.outcome) == (FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN)
    stage.ring.weather.log_away = False


@as_story()
async def test_request_id_of_two_users_is_two_writes_and_another_statement_is_refused(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    for user, name in (("ada", "a"), ("bob", "b"), ("ada", "c")):
        text = f"INSERT INTO t VALUES ('{user}')"
        await service(stage, name).execute(replace(sql("w", text, user=user), fingerprint=user))
    with pytest.raises(RequestError) as caught:
        await service(stage, "b").execute(sql("w", "SELECT 1", user="ada"))
    assert caught.value.error_class == "HAPROC_REQUEST_ID_REUSED"
    await stage.settle()
    assert held(stage, "c") == [("ada",), ("bob",)]


# -- what a write rests on ---------------------------------------------------------------------

COPY = "INSERT INTO copies SELECT x FROM t"


async def tables(stage: Stage) -> None:
    await stage.submit("a", ddl("a", "copies", "CREATE TABLE copies (x)"))
    await stage.submit("a", ddl("a"))
    await stage.submit("a", operation("one", Kind.INSERT, "INSERT INTO t VALUES ('1')", "a"))
    await stage.ready("a", "b", "c")


def between(stage: Stage, *changes: Operation) -> Any:
    """Return a function that submits one of these changes between a door's look and its append."""
    left = list(changes)

    async def meanwhile() -> None:
        if left:
            await stage.apply("c", left.pop(0))

    return meanwhile


def rename(op_id: str, name: str, to: str) -> Operation:
    sql = f"ALTER TABLE {name} RENAME TO {to}"
    return ddl("c", op_id, sql, kind=Kind.ALTER_TABLE, writes=T)


@as_story()
async def test_write_whose_table_was_redefined_after_the_look_is_appended_again(
    stage: Stage,
) -> None:
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


@as_story()
async def test_retry_that_finds_only_a_stale_attempt_appends_its_own(stage: Stage) -> None:
    await tables(stage)
    stage.at("b", Step.APPEND_AFTER, Node.kill)
    doors = service(stage, "b", between(stage, rename("r1", "t", "u"), rename("r2", "u", "t")))
    life = stage.life("b")

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


@as_story()
async def test_write_that_is_stale_too_often_is_refused_as_not_sent(
    stage: Stage,
) -> None:
    await tables(stage)
    names = ["t", "u"] * ATTEMPTS_MAX
    steps = [rename(f"r{n}", names[n], names[n + 1]) for n in range(ATTEMPTS_MAX)]
    with pytest.raises(RequestError) as caught:
        await service(stage, "b", between(stage, *steps)).execute(sql("w", COPY))
    error = caught.value
    assert (error.error_class, error.outcome) == ("HAPROC_REDEFINED", WriteOutcome.NOT_SENT)
    assert error.kind is FailureKind.AVAILABILITY
    await stage.settle()
    assert [stage.node(n).spark.dump()["copies"] for n in "abc"] == [[]] * 3


@as_story()
async def test_writes_that_redefine_each_others_table_all_succeed(stage: Stage) -> None:
    await tables(stage)

    async def client(name: str) -> None:
        attempts = Attempts(stage.replica(name))
        for n in range(5):
            request = sql(f"{name}{n}", "", age_s=0.0)

            async def make(op_id: str = request.id) -> Operation:
                looked_at = (await attempts.ground()).low
                await asyncio.sleep(0.1)
                text = f"ALTER TABLE t ADD COLUMN {op_id}"
                op = ddl(name, op_id, text, kind=Kind.ALTER_TABLE, writes=T)
                op = replace(op, analyzed_to=looked_at, rests_on=T)
                return as_made(op, stage.replica(name).writes.since())

            done = await attempts.write(request, make)
            assert done.outcome.status is OutcomeStatus.APPLIED

    await asyncio.gather(*(client(name) for name in "abc"))
    await stage.settle()
    assert len(stage.node("a").spark.columns("t")) == 16


@as_story()
async def test_haproc_restarted_under_log_faults_finds_the_outcome_of_a_stale_write(
    stage: Stage,
) -> None:
    await tables(stage)
    answer = await service(stage, "b").execute(sql("w", COPY))
    await stage.submit("c", rename("r1", "t", "u"))
    await stage.settle()
    stage.node("b").restart()
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
    found_outcome = stage.replica("b").core.outcomes.at(offset)
    assert found_outcome is not None and found_outcome.outcome is DONE_BEFORE


@as_story()
async def test_write_that_evolves_a_schema_raises_the_definitions_watermark(
    stage: Stage,
) -> None:
    await tables(stage)
    core = stage.replica("a").core
    settings = Settings(confs=(("spark.databricks.delta.schema.autoMerge.enabled", "true"),))
    plain = operation("p", Kind.INSERT, "INSERT INTO t SELECT '2'", "a", writes=T)
    before = core.watermarks.definitions_applied
    await stage.submit("a", plain)
    assert core.watermarks.definitions_applied == before
    await stage.submit("a", replace(plain, id="e", settings=settings))
    assert core.watermarks.definitions_applied == before + 1


@as_story(limits=replace(LIMITS, window_records=40))
async def test_look_on_a_cluster_far_behind_waits_until_it_is_near_the_end_of_the_log(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("b").spark.held.add("t")
    others = [operation(f"o{n}", Kind.DELETE, "DELETE FROM t WHERE x = 2", "a") for n in range(15)]
    for op in others:
        await stage.submit("a", replace(op, writes=frozenset({"t"})))
    ground = asyncio.ensure_future(Attempts(stage.replica("b")).ground(frozenset({"t"})))
    await asyncio.sleep(2)
    assert not ground.done()
    stage.node("b").spark.held.clear()
    assert (await ground).low >= stage.ring.store.end - 5


# -- time that is over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("SELECT * FROM t", WriteOutcome.NOT_SENT),
        ("UPDATE t SET x = 1", WriteOutcome.UNKNOWN),
    ],
)
@as_story()
async def test_timeout_has_an_unknown_outcome_only_for_a_write(
    stage: Stage, text: str, outcome: WriteOutcome
) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("a").spark.statement_s = 100
    doors: Any = service(stage, "a")
    doors._spark_session = lambda *_: asyncio.sleep(100)
    with pytest.raises(RequestError) as caught:
        await doors.execute(replace(sql("r", text), timeout_s=2))
    assert caught.value.error_class == "HAPROC_TIMEOUT"
    assert caught.value.outcome is outcome
    stage.node("a").spark.statement_s = 0


@as_story()
async def test_timeout_while_spark_parses_a_first_attempt_has_outcome_not_sent(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    doors: Any = service(stage, "a")
    doors._classifying._recognised = lambda *_: asyncio.sleep(100)
    for age_s, outcome in ((0.0, WriteOutcome.NOT_SENT), (1.0, WriteOutcome.UNKNOWN)):
        with pytest.raises(RequestError) as caught:
            await doors.execute(replace(sql("r", "UPDATE t SET x = 1"), timeout_s=2, age_s=age_s))
        assert caught.value.error_class == "HAPROC_TIMEOUT"
        assert caught.value.outcome is outcome

        async def away(*_: Any) -> None:
            raise EngineError(ErrorKind.AVAILABILITY, "gone")

        doors._classifying._recognised = away
        with pytest.raises(RequestError) as caught:
            await doors.execute(replace(sql("r", "UPDATE t SET x = 1"), age_s=age_s))
        assert caught.value.outcome is outcome
        doors._classifying._recognised = lambda *_: asyncio.sleep(100)
