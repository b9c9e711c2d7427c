"""Tests of plans with computed rows, and of sessions that plans and statements rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Observed, Settings
from haproc.engine.placeholder import placeholder
from haproc.engine.statement import Statement
from haproc.failure import ErrorClass
from haproc.replicate.apply.computing import session_gone
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, Passed, QueryWrite, SessionRef
from haproc.sessions.journal import SqlEntry
from haproc.sessions.upkeep import rebuilding
from tests.simulation.computed import gather, of_session
from tests.simulation.directed import Stage, as_story
from tests.simulation.network import Refused
from tests.simulation.queries import Result, SimReading
from tests.simulation.ring import Node
from tests.simulation.test_computed import rows_records, seen
from tests.simulation.test_staging_tables import IDS, check_rows_settled, ids
from tests.unit.session_rig import Ring as Sessions

REF = SessionRef("anonymous", "s", 2, "b-1")
TOO_LARGE = RefusedError(ErrorClass.TOO_LARGE_TO_MATERIALISE, "too large", "write less")


def plan(op_id: str, origin: str, ref: SessionRef | None = None) -> Operation:
    """Return a plan that appends the same rows as a gather."""
    op = gather(op_id, origin)
    assert isinstance(op.write, QueryWrite)
    query = protos.relations.Relation()
    query.sql.query = op.write.query
    template = protos.base.Plan()
    write = template.command.write_operation_v2
    write.table_name, write.mode = "gathered", protos.commands.WriteOperationV2.MODE_APPEND
    write.input.CopyFrom(placeholder())
    made = ComputedPlan(query.SerializeToString(), template.SerializeToString(), ref)
    return replace(op, write=made)


Form = Callable[[str, str, SessionRef | None], Operation]
in_both_forms = pytest.mark.parametrize("form", [plan, of_session])


def with_sessions(stage: Stage, *errors: Exception) -> list[tuple[str, SessionRef]]:
    """Let all clusters rebuild sessions; return the rebuilds. The first ones raise the errors."""
    built: list[tuple[str, SessionRef]] = []
    left = list(errors)

    def of(name: str) -> Callable[[SessionRef], object]:
        async def rebuild(ref: SessionRef) -> Any:
            built.append((name, ref))
            if left:
                raise left.pop(0)
            return stage.reading(name)

        return rebuild

    for name in "abc":
        stage.replica(name).computing.rebuild = of(name)  # type: ignore[assignment]
    return built


@as_story()
async def test_plan_is_filled_with_the_rows_of_its_query_on_all_clusters(stage: Stage) -> None:
    await ids(stage)
    outcome = await stage.submit("a", plan("g", "a"))
    assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
    await check_rows_settled(stage)


@in_both_forms
@as_story()
async def test_write_whose_origin_dies_is_computed_in_its_rebuilt_session(
    stage: Stage, form: Form
) -> None:
    await ids(stage)
    built = with_sessions(stage)
    stage.at("a", Step.ROWS_BEFORE, Node.kill)
    with pytest.raises(Refused):
        await stage.submit("a", form("g", "a", REF))
    await stage.apply("b", form("g", "b", REF))
    assert (rows_records(stage)[0].by, REF) in built
    await check_rows_settled(stage)


@in_both_forms
@as_story()
async def test_write_with_a_rebuilt_session_is_computed_under_the_settings_of_the_write(
    stage: Stage, form: Form
) -> None:
    """The journal may have continued, and keeps the newest settings only."""

    found: list[Settings] = []

    class Reading(SimReading):
        async def configure(self, settings: Settings) -> None:
            found.append(settings)
            await super().configure(settings)

    await ids(stage)
    reading = stage.reading("a", Reading)

    async def rebuild(_: SessionRef) -> Any:
        return reading

    stage.replica("a").computing.rebuild = rebuild
    op = replace(form("g", "a", REF), settings=Settings(time_zone="Asia/Tokyo"))
    await stage.apply("a", op)
    assert found == [op.settings]


@in_both_forms
@as_story()
async def test_observations_of_the_query_are_known_on_all_clusters(
    stage: Stage, form: Form
) -> None:
    """The run that computed the rows has the observations; applying the rows has none."""

    class Reading(SimReading):
        async def query(
            self,
            statement: Statement,
            *,
            timeout_s: float,
            planned: Any = None,
            observed: Observed | None = None,
        ) -> Result:
            assert observed is not None
            observed(b"50")
            return await super().query(statement, timeout_s=timeout_s)

    await ids(stage)
    op = form("g", "a", REF)
    stage.replica("a").computing.attach_session(op.key, stage.reading("a", Reading))
    assert (await stage.submit("a", op)).applied.observed == (b"50",)
    await stage.settle()
    for name in "bc":
        found_outcome = stage.replica(name).core.outcomes.find(op.key)
        assert found_outcome is not None and found_outcome.outcome is not None
        assert found_outcome.outcome.applied.observed == (b"50",), name


@pytest.mark.parametrize("what", ["lost", "not made yet", "changed by its client"])
@in_both_forms
@as_story()
async def test_write_whose_attached_session_has_changed_is_computed_in_a_rebuilt_session(
    stage: Stage, form: Form, what: str
) -> None:
    """One is not rebuilt yet, because its rebuilding waits for the log and so for this plan."""
    await ids(stage)
    built = with_sessions(stage)
    op, reading, as_it_was = form("g", "a", REF), stage.reading("a"), [True]
    stage.replica("a").computing.attach_session(op.key, reading, lambda: as_it_was[0])

    def happens(_: Node) -> None:
        reading.epoch += what == "lost"
        reading.stands = what != "not made yet"
        as_it_was[:] = [what != "changed by its client"]

    stage.at("a", Step.ROWS_BEFORE, happens)
    await stage.apply("a", op)
    assert built == [("a", REF)]
    await check_rows_settled(stage)


@pytest.mark.parametrize("error", [None, EngineError(ErrorKind.APPLICATION, "v"), TOO_LARGE])
@pytest.mark.parametrize("what", ["changed", "to be made anew", "lost"])
@in_both_forms
@as_story()
async def test_write_whose_session_its_client_changes_while_its_query_runs_gets_one_of_its_own(
    stage: Stage, form: Form, what: str, error: Exception | None
) -> None:
    """The rows, and an error as well, may come from its client's statements after the plan."""

    as_it_was = [True]

    class Reading(SimReading):
        async def query(self, statement: Statement, *, timeout_s: float, **_: Any) -> Result:
            found = await super().query(statement, timeout_s=timeout_s)
            as_it_was[:] = [what != "changed"]
            self.stands = what != "to be made anew"
            self.epoch += what == "lost"
            if error is not None:
                raise error
            return found

    await ids(stage)
    built = with_sessions(stage)
    op, reading = form("g", "a", REF), stage.reading("a", Reading)
    stage.replica("a").computing.attach_session(op.key, reading, lambda: as_it_was[0])
    await stage.apply("a", op)
    assert built == [("a", REF)]
    await check_rows_settled(stage)


@in_both_forms
@as_story()
async def test_write_whose_session_is_gone_is_rejected(stage: Stage, form: Form) -> None:
    await ids(stage)
    with_sessions(stage, session_gone("every cluster"))
    outcome = await stage.submit("a", form("g", "a", REF))
    assert outcome.status is OutcomeStatus.REJECTED and outcome.failure is not None
    assert outcome.failure.error_class == ErrorClass.SESSION_GONE
    await stage.settle()
    assert seen(stage, "b", "g") == []


@in_both_forms
@as_story()
async def test_write_whose_session_has_a_failing_step_is_rejected_at_once(
    stage: Stage, form: Form
) -> None:
    """Later operations must not wait until all clusters have tried repeatedly."""
    await ids(stage)
    member = Sessions().member()
    session = await member.sessions.enter("anonymous", "s", create=True)
    await member.sessions.record(session, SqlEntry("CREATE TEMP VIEW v"))
    member.engine.fails.add("CREATE TEMP VIEW v")
    for name in "abc":
        stage.replica(name).computing.rebuild = rebuilding(member.sessions)
    ref = replace(REF, entries=1, begun=session.begun)
    outcome = await stage.submit("a", form("g", "a", ref))
    assert outcome.status is OutcomeStatus.REJECTED and outcome.failure is not None
    assert outcome.failure.error_class == ErrorClass.SESSION_NOT_REBUILT
    assert len(member.engine.made) == 2, "the client's own, and one that was to be made anew"
    assert not stage.records(Passed)
    await stage.settle()
    assert [seen(stage, name, "g") for name in "abc"] == [[], [], []]


@pytest.mark.parametrize("error", [EngineError(ErrorKind.ENVIRONMENT, "the store is away")])
@in_both_forms
@as_story()
async def test_write_whose_session_cannot_be_rebuilt_now_is_computed_by_the_next_cluster(
    stage: Stage, form: Form, error: Exception
) -> None:
    await ids(stage)
    built = with_sessions(stage, error)
    await stage.apply("a", form("g", "a", REF))
    assert [name for name, _ in built] == ["a", "b"]
    assert [m.by for m in stage.records(Passed)] == ["a"]
    await check_rows_settled(stage)
    assert sorted(map(str, seen(stage, "c", "g"))) == IDS
