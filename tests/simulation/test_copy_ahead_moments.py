"""Copies ahead of the queue: what a cluster says of itself, and stores, at each moment."""

from __future__ import annotations

import asyncio

from haproc.classify.model import Kind
from haproc.membership.state import State
from haproc.replicate.agree.rebuilding import ask_for
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.progress import CopyRequest, Progress, from_cursor
from tests.simulation.directed import Stage, story
from tests.simulation.ring import LIMITS
from tests.simulation.scenario import insert, operation
from tests.simulation.test_copy_ahead import copied, missed, records, slow, soon, tables

__all__ = ["soon"]  # the fixture


def test_operation_that_failed_counts_as_applied_at_no_moment() -> None:
    """The cluster hears its report before it has read the operation: its queue has no room."""

    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        full = LIMITS.look_ahead_records_max + 5
        await asyncio.gather(*(stage.submit("a", insert(f"u{n}", "u", "a")) for n in range(full)))
        bad = operation("bad", Kind.UPDATE, "UPDATE t SET y = 1", "a", writes=frozenset({"t"}))
        assert (await stage.submit("a", bad)).status is OutcomeStatus.FAILED
        known = stage.replica("a").core.outcomes.find(bad.key)
        assert known is not None
        await asyncio.gather(*(stage.submit("a", insert(f"v{n}", "u", "a")) for n in range(full)))
        slow(stage, "c")
        stage.node("c").start()
        told = set[str]()

        async def ask() -> None:
            while True:
                if stage.node("c").alive:
                    told.add((await stage.replica("c").outcome(known.offset)).status)
                await asyncio.sleep(0.05)

        asking = asyncio.ensure_future(ask())
        await stage.until(lambda: bool(records(stage)), 300)
        await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
        asking.cancel()
        await stage.settle()
        assert copied(stage, "c") == ["t"]
        assert OutcomeStatus.FAILED.value in told
        assert OutcomeStatus.APPLIED.value not in told

    story(tell)


def test_rebuild_that_is_asked_for_while_that_is_stored_knows_it_too() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t")
        await missed(stage, "c")
        slow(stage, "c")
        stage.node("c").start()
        await stage.until(lambda: bool(records(stage)), 300)
        await stage.until(lambda: stage.alive_state("c") is State.COPYING, 300)
        core = stage.replica("c").core
        commit, asked = core.own_log._commit, list[asyncio.Future[None]]()

        async def slowly(progress: Progress) -> None:
            if progress.copying is not None and progress.copying.first >= 0 and not asked:
                asked.append(asyncio.ensure_future(ask_for(core, CopyRequest())))
                await asyncio.sleep(1)
            await commit(progress)

        core.own_log._commit = slowly  # type: ignore[method-assign]
        await stage.until(lambda: bool(asked), 300)
        await asked[0]
        cursor = await core.own_log.unless_replaced()
        assert cursor is not None
        copying = from_cursor(cursor).copying
        assert copying is not None and copying.marker == -1 and copying.first >= 0
        stage.node("c").kill()
        await stage.settle()

    story(tell)
