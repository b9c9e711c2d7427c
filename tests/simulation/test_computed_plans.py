"""Plans whose rows are computed at their place, and sessions that plans and texts rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Observed, Session, Settings
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
from tests.simulation.computed import gather
from tests.simulation.directed import Stage, story
from tests.simulation.network import Refused
from tests.simulation.queries import Result, SimReading
from tests.simulation.ring import Node
from tests.simulation.test_computed import rows_records, seen
from tests.simulation.test_staging_tables import IDS, gathered, ids
from tests.unit.session_rig import Ring as Sessions

REF = SessionRef("anonymous", "s", 2, "b-1")
TOO_LARGE = RefusedError(ErrorClass.TOO_LARGE_TO_MATERIALISE, "too large", "write less")


def plan(op_id: str, origin: str, ref: SessionRef | None = None) -> Operation:
    """Return a plan that appends what a gather does."""
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


def text(op_id: str, origin: str, ref: SessionRef | None = None) -> Operation:
    """Return a gather that rests on a session."""
    op = gather(op_id, origin)
    assert isinstance(op.write, QueryWrite)
    return replace(op, write=structs.replace(op.write, of_session=True, session=ref))


Form = Callable[[str, str, SessionRef | None], Operation]
in_both_forms = pytest.mark.parametrize("form", [plan, text])


def with_sessions(stage: Stage, *errors: Exception) -> list[tuple[str, SessionRef]]:
    """Have every cluster rebuild sessions; return who did. The first ones meet errors."""
    built: list[tuple[str, SessionRef]] = []
    left = list(errors)

    def of(name: str) -> Callable[[SessionRef], object]:
        async def rebuild(ref: SessionRef) -> Session:
            built.append((name, ref))
            if left:
                raise left.pop(0)
            life = stage.node(name).life
            assert life is not None
            return SimReading(stage.node(name).spark, life.check)  # type: ignore[return-value]

        return rebuild

    for name in "abc":
        stage.replica(name).computing.rebuild = of(name)  # type: ignore[assignment]
    return built


def test_plan_is_filled_with_the_rows_of_its_query_on_every_cluster() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        outcome = await stage.submit("a", plan("g", "a"))
        assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
        await gathered(stage)

    story(tell)


@in_both_forms
def test_write_whose_origin_dies_is_computed_in_its_session_made_anew(form: Form) -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        built = with_sessions(stage)
        stage.at("a", Step.ROWS_BEFORE, Node.kill)
        with pytest.raises(Refused):
            await stage.submit("a", form("g", "a", REF))
        assert (await stage.submit("b", form("g", "b", REF))).status is OutcomeStatus.APPLIED
        assert (rows_records(stage)[0].by, REF) in built
        await gathered(stage)

    story(tell)


@in_both_forms
def test_write_whose_session_is_made_anew_is_computed_under_its_own_settings(form: Form) -> None:
    """The journal may have gone on, and keeps the newest settings only."""
    found: list[Settings] = []

    class Reading(SimReading):
        async def configure(self, settings: Settings) -> None:
            found.append(settings)
            await super().configure(settings)

    async def tell(stage: Stage) -> None:
        await ids(stage)
        life = stage.node("a").life
        assert life is not None
        reading = Reading(stage.node("a").spark, life.check)

        async def rebuild(_: SessionRef) -> Session:
            return reading  # type: ignore[return-value]

        stage.replica("a").computing.rebuild = rebuild
        op = replace(form("g", "a", REF), settings=Settings(time_zone="Asia/Tokyo"))
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED
        assert found == [op.settings]

    story(tell)


@in_both_forms
def test_what_observations_of_the_query_found_is_told_wherever_the_rows_are_applied(
    form: Form,
) -> None:
    """The run that gave the rows found it: applying them meets no observation any more."""

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

    async def tell(stage: Stage) -> None:
        await ids(stage)
        op, life = form("g", "a", REF), stage.node("a").life
        assert life is not None
        reading = Reading(stage.node("a").spark, life.check)
        stage.replica("a").computing.attach_session(op.key, reading)  # type: ignore[arg-type]
        assert (await stage.submit("a", op)).applied.observed == (b"50",)
        await stage.settle()
        for name in "bc":
            known = stage.replica(name).core.outcomes.find(op.key)
            assert known is not None and known.outcome is not None
            assert known.outcome.applied.observed == (b"50",), name

    story(tell)


@pytest.mark.parametrize("what", ["lost", "not made yet", "changed by its client"])
@in_both_forms
def test_write_whose_lent_session_is_not_as_it_was_is_computed_in_one_of_its_own(
    form: Form, what: str
) -> None:
    """One that is not made yet, because whoever makes it waits for what is in the log: the plan."""

    async def tell(stage: Stage) -> None:
        await ids(stage)
        built = with_sessions(stage)
        op, life = form("g", "a", REF), stage.node("a").life
        assert life is not None
        reading, as_it_was = SimReading(stage.node("a").spark, life.check), [True]
        computing = stage.replica("a").computing
        computing.attach_session(op.key, reading, lambda: as_it_was[0])  # type: ignore[arg-type]

        def happens(_: Node) -> None:
            reading.epoch += what == "lost"
            reading.stands = what != "not made yet"
            as_it_was[:] = [what != "changed by its client"]

        stage.at("a", Step.ROWS_BEFORE, happens)
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED
        assert built == [("a", REF)]
        await gathered(stage)

    story(tell)


@pytest.mark.parametrize("error", [None, EngineError(ErrorKind.APPLICATION, "v"), TOO_LARGE])
@pytest.mark.parametrize("what", ["changed", "to be made anew", "lost"])
@in_both_forms
def test_write_whose_session_its_client_changes_while_its_query_runs_is_computed_in_one_of_its_own(
    form: Form, what: str, error: Exception | None
) -> None:
    """What it gave, and an error as well, may come of what its client did behind the plan."""
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

    async def tell(stage: Stage) -> None:
        await ids(stage)
        built = with_sessions(stage)
        op, life = form("g", "a", REF), stage.node("a").life
        assert life is not None
        reading = Reading(stage.node("a").spark, life.check)
        computing = stage.replica("a").computing
        computing.attach_session(op.key, reading, lambda: as_it_was[0])  # type: ignore[arg-type]
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED
        assert built == [("a", REF)]
        await gathered(stage)

    story(tell)


@in_both_forms
def test_write_whose_session_is_no_more_is_rejected(form: Form) -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        with_sessions(stage, session_gone("every cluster"))
        outcome = await stage.submit("a", form("g", "a", REF))
        assert outcome.status is OutcomeStatus.REJECTED and outcome.failure is not None
        assert outcome.failure.error_class == ErrorClass.SESSION_GONE
        await stage.settle()
        assert seen(stage, "b", "g") == []

    story(tell)


@in_both_forms
def test_write_whose_session_has_a_step_that_fails_is_rejected_at_once(form: Form) -> None:
    """What stands behind it must not wait until every cluster has tried again and again."""

    async def tell(stage: Stage) -> None:
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
        assert not [m for m in stage.messages() if isinstance(m, Passed)]
        await stage.settle()
        assert [seen(stage, name, "g") for name in "abc"] == [[], [], []]

    story(tell)


@pytest.mark.parametrize("error", [EngineError(ErrorKind.ENVIRONMENT, "the store is away")])
@in_both_forms
def test_write_whose_session_cannot_be_made_now_is_computed_by_the_next_cluster(
    form: Form, error: Exception
) -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        built = with_sessions(stage, error)
        assert (await stage.submit("a", form("g", "a", REF))).status is OutcomeStatus.APPLIED
        assert [name for name, _ in built] == ["a", "b"]
        assert [m.by for m in stage.messages() if isinstance(m, Passed)] == ["a"]
        await gathered(stage)
        assert sorted(map(str, seen(stage, "c", "g"))) == IDS

    story(tell)
