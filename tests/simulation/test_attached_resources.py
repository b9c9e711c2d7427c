"""Tests of sessions that requests attach to operations: they are released at the end."""

from __future__ import annotations

import asyncio

from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SessionRef
from haproc.route.attempts import AttachedResources
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import SqlEntry
from tests.simulation.computed import of_session
from tests.simulation.directed import Stage, as_story
from tests.simulation.scenario import insert
from tests.simulation.test_computed import rows_records
from tests.simulation.test_computed_plans import with_sessions
from tests.simulation.test_staging_tables import ids
from tests.unit.session_rig import Member
from tests.unit.session_rig import Ring as Sessions


async def begun(stage: Stage) -> tuple[Member, ClientSession]:
    """Return a client's session, whose Spark session is cluster a's."""
    member = Sessions().member()
    session = await member.sessions.enter("anonymous", "s", create=True)
    await member.sessions.record(session, SqlEntry("v"))
    session.spark = stage.reading("a")
    return member, session


def resting(op_id: str, session: ClientSession, origin: str = "a") -> Operation:
    """Return a write that rests on a session in its present state."""
    ref = SessionRef(session.user, session.id, session.next_ordinal, session.begun)
    return of_session(op_id, origin, ref)


def attached(stage: Stage) -> list[str]:
    """Return the operations that have a session attached on cluster a."""
    return [op_id for _, op_id in stage.replica("a").computing._sessions]


@as_story()
async def test_session_attached_to_a_write_that_another_cluster_computes_is_released(
    stage: Stage,
) -> None:
    await ids(stage)
    with_sessions(stage)
    _, session = await begun(stage)
    op, lending = resting("g", session), AttachedResources(stage.replica("a"))
    stage.node("a").spark.held.add("ids")  # a lags
    await stage.submit("b", insert("late", "ids", "b"))
    with lending.during(op.key):
        lending.attach_session(Facts.of(op), session)
        write = asyncio.ensure_future(stage.submit("a", op, 3000))
        await stage.until(lambda: bool(rows_records(stage)))
        lending.attach_session(Facts.of(op), session)  # by a retry
    assert attached(stage) == ["g"]
    stage.node("a").spark.held.clear()
    assert (await write).status is OutcomeStatus.APPLIED
    assert rows_records(stage)[0].by != "a"
    await stage.until(lambda: not attached(stage))


@as_story()
async def test_session_stays_attached_after_its_request_until_its_write_has_ended(
    stage: Stage,
) -> None:
    await ids(stage)
    built = with_sessions(stage)
    _, session = await begun(stage)
    op, lending = resting("g", session), AttachedResources(stage.replica("a"))
    stage.node("a").spark.query_s = 2
    with lending.during(op.key):
        lending.attach_session(Facts.of(op), session)
        write = asyncio.ensure_future(stage.submit("a", op, 3000))
        await stage.until(lambda: stage.replica("a").core.outcomes.find(op.key) is not None)
    assert attached(stage) == ["g"]
    assert (await write).status is OutcomeStatus.APPLIED
    assert built == []
    await stage.until(lambda: not attached(stage))


@as_story()
async def test_session_attached_to_an_unlogged_operation_is_released_with_the_last_request(
    stage: Stage,
) -> None:
    _, session = await begun(stage)
    op, lending = resting("g~2", session), AttachedResources(stage.replica("a"))
    request = (op.user, "g")
    with lending.during(request):
        with lending.during(request):
            lending.attach_session(Facts.of(op), session)
        assert attached(stage) == ["g~2"]
    assert attached(stage) == []


@as_story()
async def test_session_begun_afresh_is_not_attached_to_operations_of_the_previous_one(
    stage: Stage,
) -> None:
    member, session = await begun(stage)
    op, lending = resting("g", session), AttachedResources(stage.replica("a"))
    afresh = await member.sessions.begin_afresh(session.user, session.id)
    await member.sessions.record(afresh, SqlEntry("another v"))
    with lending.during(op.key):
        lending.attach_session(Facts.of(op), afresh)
        assert attached(stage) == []
        lending.attach_session(Facts.of(resting("of now", afresh)), afresh)
        assert attached(stage) == ["of now"]
