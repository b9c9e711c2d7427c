"""Sessions that requests lend to their operations are given back, whoever computes the rows."""

from __future__ import annotations

import asyncio

from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SessionRef
from haproc.route.attempts import AttachedResources
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import SqlEntry
from tests.simulation.directed import Stage, story
from tests.simulation.queries import SimReading
from tests.simulation.scenario import insert
from tests.simulation.test_computed import rows_records
from tests.simulation.test_computed_plans import text, with_sessions
from tests.simulation.test_staging_tables import ids
from tests.unit.session_rig import Member
from tests.unit.session_rig import Ring as Sessions


async def begun(stage: Stage) -> tuple[Member, ClientSession]:
    """Return a client's session, whose Spark session is cluster a's."""
    member, life = Sessions().member(), stage.node("a").life
    assert life is not None
    session = await member.sessions.enter("anonymous", "s", create=True)
    await member.sessions.record(session, SqlEntry("v"))
    session.spark = SimReading(stage.node("a").spark, life.check)  # type: ignore[assignment]
    return member, session


def resting(op_id: str, session: ClientSession, origin: str = "a") -> Operation:
    """Return a write that rests on a session as it is now."""
    ref = SessionRef(session.user, session.id, session.next_ordinal, session.begun)
    return text(op_id, origin, ref)


def lent(stage: Stage) -> list[str]:
    """Return the operations that sessions are lent to on cluster a."""
    return [op_id for _, op_id in stage.replica("a").computing._sessions]


def test_session_lent_to_a_write_that_another_cluster_computes_is_given_back() -> None:
    async def tell(stage: Stage) -> None:
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
        assert lent(stage) == ["g"]
        stage.node("a").spark.held.clear()
        assert (await write).status is OutcomeStatus.APPLIED
        assert rows_records(stage)[0].by != "a"
        await stage.until(lambda: not lent(stage))

    story(tell)


def test_session_stays_lent_though_the_request_is_over_until_its_write_is() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        built = with_sessions(stage)
        _, session = await begun(stage)
        op, lending = resting("g", session), AttachedResources(stage.replica("a"))
        stage.node("a").spark.query_s = 2
        with lending.during(op.key):
            lending.attach_session(Facts.of(op), session)
            write = asyncio.ensure_future(stage.submit("a", op, 3000))
            await stage.until(lambda: stage.replica("a").core.outcomes.find(op.key) is not None)
        assert lent(stage) == ["g"]
        assert (await write).status is OutcomeStatus.APPLIED
        assert built == []
        await stage.until(lambda: not lent(stage))

    story(tell)


def test_session_lent_to_what_never_enters_the_log_is_given_back_behind_the_last_request() -> None:
    async def tell(stage: Stage) -> None:
        _, session = await begun(stage)
        op, lending = resting("g~2", session), AttachedResources(stage.replica("a"))
        request = (op.user, "g")
        with lending.during(request):
            with lending.during(request):
                lending.attach_session(Facts.of(op), session)
            assert lent(stage) == ["g~2"]
        assert lent(stage) == []

    story(tell)


def test_session_begun_afresh_is_not_lent_to_what_rests_on_the_one_before() -> None:
    async def tell(stage: Stage) -> None:
        member, session = await begun(stage)
        op, lending = resting("g", session), AttachedResources(stage.replica("a"))
        afresh = await member.sessions.begin_afresh(session.user, session.id)
        await member.sessions.record(afresh, SqlEntry("another v"))
        with lending.during(op.key):
            lending.attach_session(Facts.of(op), afresh)
            assert lent(stage) == []
            lending.attach_session(Facts.of(resting("of now", afresh)), afresh)
            assert lent(stage) == ["of now"]

    story(tell)
