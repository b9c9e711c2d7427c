"""Brings a query to a cluster that is fresh enough: waits, forwards it to a peer, or refuses it.

`haproc.route.freshness` decides. This module asks the log for its end after the request came, and
it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeAlias

from dmq import LogError
from haproc.config.model import Consistency
from haproc.config.model import Reads as Rules
from haproc.failure import (
    ErrorClass,
    FailureKind,
    RequestError,
    WriteOutcome,
    busy,
    log_unavailable,
)
from haproc.membership.peers import PeerBusyError, PeerUnavailableError
from haproc.membership.state import SERVING
from haproc.membership.view import Peer
from haproc.replicate.replica import Replica
from haproc.route.attempts import LogEnd
from haproc.route.freshness import (
    EVERYBODY,
    LEVELS_OF_THE_LOG,
    Candidate,
    Forward,
    Refuse,
    Serve,
    Wait,
    asked_for,
    decide,
    need,
    records,
)
from haproc.route.model import Answer, Freshness, Request
from haproc.route.planning import OF_THE_TIMEOUT

logger = logging.getLogger(__name__)

READ_S: Final = 0.25
"""How long a query waits until this HAProc has read the records that a kept answer must show.
Chosen: reading them takes milliseconds, unless the queue is full."""
WATCH_S: Final = 1.0
"""How often it is checked that the peer which runs a forwarded query still serves. Chosen."""
NARROW_AFTER_S: Final = 0.5
"""How long a query waits for all earlier operations before HAProc looks up its tables, for which
Spark must analyze it. Chosen: most operations take less."""
NARROW_S: Final = 2.0
"""How long a query waits for that lookup before a fresher cluster is looked for. The lookup goes
on: it takes longer while Spark's cores are busy."""


Narrow: TypeAlias = Callable[[], Awaitable[Callable[[], int] | None]]


class Forwarding(Protocol):
    """Runs queries on other clusters, through the HAProcs there."""

    async def query(self, peer: str, request: Request, needed: int, timeout_s: float) -> Answer:
        """Let the HAProc ``peer`` run the query once its cluster has applied ``needed`` records.

        Raises PeerUnavailableError if another peer should be tried, RequestError if the client
        should get the error.
        """
        ...


class Counts(Protocol):
    """Receives the metrics of reads."""

    def count_read(self, level: str) -> None:
        """Count a query with this read level."""
        ...

    def read_waited(self, level: str, seconds: float) -> None:
        """Report how long a query waited for this cluster to become fresh enough."""
        ...

    def read_forwarded(self, peer: str) -> None:
        """Count a query that was sent to this HAProc and is run by ``peer``."""
        ...


class Reads:
    """Finds for each query a cluster that is fresh enough.

    ``peers`` returns the other clusters as they last reported; ``forwarding``: None if queries are
    never forwarded.
    """

    def __init__(
        self,
        replica: Replica,
        rules: Rules,
        peers: Callable[[], Sequence[Candidate]],
        forwarding: Forwarding | None,
        counts: Counts,
    ) -> None:
        self._replica = replica
        self._core = replica.core
        self._rules = rules
        self._peers = peers
        self._forwarding = forwarding
        self._counts = counts
        self._log_end = LogEnd(replica.read_end)

    async def from_cache_or_peer(
        self,
        request: Request,
        held: Callable[[], Answer | None] = lambda: None,
        narrow: Narrow | None = None,
    ) -> Answer | None:
        """Return None as soon as the query may start on this cluster; otherwise an answer to it.

        That is a kept answer or one from a peer. ``held`` returns a kept answer that shows all
        writes which were read here, or None. ``narrow`` returns a function for the offset below
        which all writes to the query's own tables are applied; None if its tables are not known.
        Raises RequestError if no cluster can answer the query.
        """
        wanted = request.freshness
        self._counts.count_read(wanted.level.value)
        if wanted.level is Consistency.ANY:
            return held()
        came_at = asyncio.get_running_loop().time()
        end_by = came_at + self._wait_s(request.timeout_s)
        log_end = await self._end(wanted, end_by) if wanted.level in LEVELS_OF_THE_LOG else 0
        if (answer := await self._held(held, need(wanted, EVERYBODY, log_end))) is not None:
            return answer
        needed = need(wanted, self._core.me, log_end)
        soon = min(came_at + NARROW_AFTER_S, end_by)
        if self._low() >= needed or (
            narrow is not None and await self._wait(wanted, needed, soon, self._low)
        ):
            self._check_serving()
            return None
        if narrow is None:
            return await self._otherwise(request, log_end, came_at, self._low)
        narrowing = asyncio.ensure_future(narrow())
        narrowing.add_done_callback(self._narrowed)
        try:
            await asyncio.wait({narrowing}, timeout=NARROW_S)
            applied = partial(self._far, narrowing)
            if applied() >= needed:
                self._check_serving()
                return None
            return await self._otherwise(request, log_end, came_at, applied)
        finally:
            narrowing.cancel()

    def _low(self) -> int:
        return self._core.schedule.low

    def _far(self, narrowing: asyncio.Future[Callable[[], int] | None]) -> int:
        """Return the offset below which all writes to the query's tables are applied.

        If the lookup ``narrowing`` has not found the tables, all writes must be applied.
        """
        known = narrowing.done() and not narrowing.cancelled() and narrowing.exception() is None
        applied = narrowing.result() if known else None
        return self._low() if applied is None else applied()

    def _narrowed(self, narrowing: asyncio.Future[Callable[[], int] | None]) -> None:
        if not narrowing.cancelled() and (error := narrowing.exception()) is not None:
            logger.info("the tables of a query are not known: %s", error)
        self._core.news.moved()

    async def _held(self, held: Callable[[], Answer | None], needed: int) -> Answer | None:
        """Return the kept answer, if there is one, once this HAProc has read ``needed`` records.

        None at once if there is none; None after `READ_S` if the records are still missing.
        """
        schedule = self._core.schedule
        answer = held()
        if answer is None or schedule.read_to >= needed:
            return answer
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await self._core.news.until(lambda: schedule.read_to >= needed)
        return held() if schedule.read_to >= needed else None

    async def _otherwise(
        self, request: Request, log_end: int, came_at: float, applied: Callable[[], int]
    ) -> Answer | None:
        """Wait, forward the query, or refuse it, as `decide` says.

        Returns None if the query may start here, else a peer's answer. ``applied`` returns the
        offset below which all writes to the query's tables are applied. ``came_at``: when the
        request came. Raises RequestError if no cluster can run it.
        """
        wanted = request.freshness
        may_forward = self._forwarding is not None and request.session_id is None
        clock = asyncio.get_running_loop().time
        ends_at = came_at + OF_THE_TIMEOUT * request.timeout_s
        waited, nearer, tried, busy_peer = False, False, set[str](), ""
        while True:
            decision = decide(
                wanted,
                self._core.me,
                applied(),
                log_end,
                self._peers(),
                waited=waited,
                nearer=nearer and not busy_peer,
                may_forward=may_forward,
                tried=tried,
            )
            match decision:
                case Serve():
                    if request.permit is not None:
                        await request.permit.resume(came_at + request.timeout_s - clock())
                    self._check_serving()
                    return None
                case Wait():
                    if request.permit is not None:
                        request.permit.rest()
                    needed, low = need(wanted, self._core.me, log_end), self._low()
                    until = min(clock() + self._rules.wait_s, ends_at)
                    waited = not await self._wait(wanted, needed, until, applied)
                    nearer = self._comes_nearer(low) and clock() < ends_at
                    tried.clear()
                    busy_peer = ""
                case Forward(peer):
                    tried.add(peer)
                    try:
                        return await self._forward(peer, request, log_end, came_at)
                    except PeerBusyError:
                        busy_peer = peer
                    except PeerUnavailableError:
                        pass
                case Refuse(why):
                    raise busy(f"{why}; {busy_peer} is busy") if busy_peer else _not_fresh(why)

    def _comes_nearer(self, low: int) -> bool:
        """True if more than ``low`` records are applied here, or the next operation is running."""
        first = next(self._core.schedule.unfinished(), None)
        return self._core.schedule.low > low or (first is not None and first.running)

    async def for_peer(self, needed: int, timeout_s: float) -> None:
        """Wait until this cluster has applied ``needed`` records, for a peer's query.

        Raises RequestError if that takes too long, or if this cluster does not serve clients.
        """
        wanted = Freshness(Consistency.SESSION, after_offset=needed)
        ends_at = asyncio.get_running_loop().time() + self._wait_s(timeout_s)
        if self._core.schedule.low < needed and not await self._wait(
            wanted, needed, ends_at, self._low
        ):
            missing = records(needed - self._core.schedule.low)
            raise _not_fresh(f"{self._core.me} lacks {missing}")
        self._check_serving()

    def _wait_s(self, timeout_s: float) -> float:
        return min(self._rules.wait_s, OF_THE_TIMEOUT * timeout_s)

    async def _end(self, wanted: Freshness, ends_at: float) -> int:
        try:
            async with asyncio.timeout_at(ends_at):
                return await self._log_end.read_log_end()
        except (LogError, TimeoutError) as error:
            what = f"the log did not report its end, which {asked_for(wanted)} needs"
            hint = "ask the next HAProc with the same request_id, or with consistency session"
            raise log_unavailable(what, error, hint, WriteOutcome.NOT_SENT) from error

    async def _wait(
        self, wanted: Freshness, needed: int, ends_at: float, applied: Callable[[], int]
    ) -> bool:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout_at(ends_at):
                await self._replica.applied(needed, applied)
        except TimeoutError:
            return False
        finally:
            self._counts.read_waited(wanted.level.value, clock() - began)
        return True

    async def _forward(self, peer: str, request: Request, log_end: int, came_at: float) -> Answer:
        assert self._forwarding is not None
        needed = need(request.freshness, peer, log_end)
        left_s = request.timeout_s - (asyncio.get_running_loop().time() - came_at)
        forwarded = asyncio.ensure_future(self._forwarding.query(peer, request, needed, left_s))
        try:
            while not (await asyncio.wait({forwarded}, timeout=WATCH_S))[0]:
                if not any(each.name == peer and each.serving for each in self._peers()):
                    raise PeerUnavailableError(f"{peer} is gone")  # or frozen, and silent
            answer = await forwarded
        except BaseException:
            forwarded.cancel()
            (ended,) = await asyncio.gather(forwarded, return_exceptions=True)
            if isinstance(ended, Answer):
                await ended.result.aclose()
            raise
        self._counts.read_forwarded(peer)
        return answer

    def _check_serving(self) -> None:
        if self._core.condition.state not in SERVING:
            raise self._replica.writes.unavailable()


def readers(peers: Mapping[str, Peer]) -> list[Candidate]:
    """Return the other clusters as candidates to run queries.

    ``peers``: what this HAProc knows of their HAProcs.
    """
    found = []
    for name, peer in peers.items():
        received = peer.beat or peer.report
        serving = peer.alive and received is not None and received.state in SERVING
        cursor = peer.report.cursor if peer.report is not None else None
        found.append(Candidate(name, serving, cursor))
    return found


def _not_fresh(why: str) -> RequestError:
    return RequestError(
        FailureKind.AVAILABILITY,
        why,
        error_class=ErrorClass.NOT_FRESH,
        hint="ask the next HAProc with the same request_id, or ask for less",
    )
