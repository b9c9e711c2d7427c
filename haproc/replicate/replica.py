"""One cluster's replica: reads the log, applies it, and takes in new operations.

`Replica.run` claims the cluster, goes back to where the stored progress says, learns from the
tables themselves what a crash left unclear, and follows the log. `submit` is what a client's write
comes to: one append, then the outcome on this cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from dmq import Json, LogError, LogUnavailableError, RecordTooLargeError
from haproc.config.model import LANES_MAX
from haproc.engine.errors import EngineError
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, message_of
from haproc.membership.roster import Member
from haproc.membership.state import SERVING
from haproc.replicate.agree import assurance
from haproc.replicate.agree.admission import Admission
from haproc.replicate.agree.giving_up import GivingUp
from haproc.replicate.agree.outcome_check import Comparison
from haproc.replicate.agree.table_check import Verifier
from haproc.replicate.apply.applier import Applier
from haproc.replicate.apply.computing import Computing
from haproc.replicate.apply.synchronous import Synchronous, describe
from haproc.replicate.apply.takeover import Takeover
from haproc.replicate.heard.claims import Claims
from haproc.replicate.heard.definitions import redefined_by
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.operators import Operators
from haproc.replicate.queue.outcomes import DONE_BEFORE, Known, Outcome, Status
from haproc.replicate.reader import Reader
from haproc.replicate.records.operation import Claim, Operation, to_record
from haproc.replicate.records.progress import Progress, from_cursor

logger = logging.getLogger(__name__)

T = TypeVar("T")
FRESH_S = 1.0
"""Caught up means: applied the end that the log had at most this long ago."""
STEADY_ROUNDS, STEADY_S = 3, 10.0
"""Or so many times in a row the end that it had at most this long ago: under a steady load of
statements that take a second each, a serving cluster is not closer to the end either."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How far the replay of a queue has come."""

    applied: int = 0
    remaining: int = 0
    rate_per_s: float = 0.0
    seconds_left: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An operation in the log, and what became of it here."""

    operation: Operation
    offset: int
    outcome: Outcome


class Replica:
    """See the module."""

    def __init__(
        self, core: Core, on_members: Callable[[Sequence[Member]], None] = lambda members: None
    ) -> None:
        self.core = core
        self._comparison = Comparison(core)
        self._synchronous = Synchronous(core)
        self.computing = Computing(core)
        self._verifier = Verifier(core)
        self._giving_up = GivingUp(core)
        self.operators = Operators(core, self._verifier, self._giving_up)
        self.admission = Admission(core, on_members)
        self._reader = Reader(
            core,
            self._comparison.reported,
            self.operators.read,
            self.admission.heard,
            self._giving_up,
        )
        lanes = [core.engine.lane(i, core.still_mine) for i in range(core.limits.lanes)]
        self._applier = Applier(
            core,
            lanes,
            self._synchronous,
            self.computing,
            self._giving_up,
            self._comparison.ran,
            self._verifier.at,
        )
        self._log_end = 0
        self._recovery_from: tuple[int, float] | None = None

    # -- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Replicate until cancelled; raises what no retry can mend."""
        core = self.core
        try:
            core.spawn(core.store.run())
            core.spawn(core.health.run())
            core.spawn(self._start())
            await core.broken()
        finally:
            await core.cancel_tasks()

    async def _start(self) -> None:
        core = self.core
        identity = await core.reaching(core.log.identity)
        core.application = f"{core.identity.ring}.{identity[:12]}"
        core.epoch = await core.append(Claim(core.me, core.identity.incarnation))
        progress = await self._load()
        doubtful_below = await core.reaching(core.log.end)
        if progress.low > doubtful_below:
            core.update(
                behind=f"the log ends at {doubtful_below}, before this cluster's cursor "
                f"{progress.low}: it lost its newest records; rebuild this cluster from another one"
            )
            return
        core.past.observe(asyncio.get_running_loop().time(), doubtful_below)
        core.schedule = core.new_schedule(progress, doubtful_below)
        core.claims = Claims(progress.claims)
        await self.admission.restore(progress.roster)
        await self._reader.rebuild(progress.low)
        core.update(diverged=progress.diverged)
        await self._giving_up.hear(doubtful_below)
        core.spawn(self._reader.run())
        await self._fence()
        await self._know_the_storage()
        await self._read_up_to(doubtful_below)
        await self._restore(doubtful_below)
        core.update(started=True)
        core.spawn(self._applier.run())
        core.spawn(Takeover(core, self.computing).watch())
        core.spawn(self._catch_up())
        core.spawn(self._know_the_end())
        self._comparison.resume()
        await self._verifier.resume()
        await self._synchronous.resume(dict(self._reader.unfinished))

    async def _load(self) -> Progress:
        core = self.core
        cursor = await core.unless_replaced()
        return Progress(born=core.epoch) if cursor is None else from_cursor(cursor)

    async def _read_up_to(self, offset: int) -> None:
        """Wait until the log is read up to the offset, or as far as it is read ahead."""
        core = self.core
        while core.schedule.read_to < offset and not core.condition.behind:
            if core.schedule.pending >= core.limits.look_ahead_records_max:
                return
            core.moved.clear()
            await core.moved.wait()

    async def _fence(self) -> None:
        """Stop what earlier incarnations left running on this cluster, on every lane there is."""
        core = self.core
        lanes = [core.engine.lane(i, core.still_mine) for i in range(LANES_MAX)]

        async def fence() -> None:
            await asyncio.gather(*(lane.fence() for lane in lanes))

        await self._asking(fence)

    async def _asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask the cluster until it answers."""
        core, delay = self.core, self.core.timeouts.retry_first_s
        while True:
            await core.health.up.wait()
            try:
                return await call()
            except EngineError as error:
                logger.warning("%s: %s", core.me, error.message)
                core.health.suspect(f"{error.error_class or error.kind}: {error.message}")
            await asyncio.sleep(delay)
            delay = min(2 * delay, core.timeouts.retry_max_s)

    async def _know_the_storage(self) -> None:
        """Make sure that the cluster's storage is the one to which the cursor belongs."""
        core, known = self.core, self.core.schedule.storage
        core.schedule.storage = await self._asking(lambda: core.engine.storage(known))
        if core.schedule.storage != known:
            await core.store()

    async def _restore(self, log_end: int) -> None:
        """Ask the tables for their last offsets: what the stored progress does not know yet."""
        core = self.core
        tables = sorted(core.schedule.doubtful_tables())
        if not tables:
            return
        applied = await self._asking(lambda: core.engine.offsets_applied(tables, core.application))
        if any(offset >= log_end for offset in applied.values()):
            core.update(
                behind=f"tables hold offsets that the log (end {log_end}) does not have; it is an "
                "older copy: bring the newest one back"
            )
            return
        found = core.schedule.restore(applied)
        self._giving_up.applied(found)
        for offset in found:
            known = core.outcomes.at(offset)
            if known is not None and known.outcome is None:
                core.outcomes.resolve(offset, DONE_BEFORE)
        # Durable before anything later starts, like whatever is done: a second crash may come.
        await core.store()

    async def _know_the_end(self) -> None:
        """Keep what is known of the log's end fresh, for lag and recovery figures.

        Asks at a steady pace, also while the log fails: how long it has been silent is evidence.
        """
        core = self.core
        while True:
            with suppress(LogUnavailableError, TimeoutError):
                self._log_end = await core.once(core.log.end)
                core.past.observe(asyncio.get_running_loop().time(), self._log_end)
                if not core.condition.log_up:
                    async with asyncio.timeout(core.timeouts.probe_interval_s):
                        await core.store()  # does it take a write again?
            await asyncio.sleep(core.timeouts.probe_interval_s)

    async def _catch_up(self) -> None:
        """Declare the cluster caught up once it has applied all that others wrote meanwhile."""
        core, clock = self.core, asyncio.get_running_loop().time
        rounds, told = 0, False
        while True:
            if core.condition.caught_up or not core.condition.cluster_up:
                rounds, told = 0, False
                core.moved.clear()
                await core.moved.wait()
                continue
            if self._recovery_from is None:
                self._recovery_from = (core.schedule.low, clock())
            began = clock()
            # First tell, then read the end: a write that is acknowledged without this cluster was
            # appended before its origin was told, and so is below that end.
            core.tell()
            self._log_end = await core.reaching(core.log.end)
            await self._low_reaches(self._log_end)
            took_s = clock() - began
            rounds = rounds + 1 if took_s < STEADY_S else 0
            fresh = took_s < FRESH_S or rounds >= STEADY_ROUNDS
            if told and fresh and core.condition.cluster_up:
                self._recovery_from = None
                core.update(caught_up=True)
            told = True  # at the next round: that it is near the end

    async def _low_reaches(self, offset: int) -> None:
        core, clock = self.core, asyncio.get_running_loop().time
        told = clock()
        while core.schedule.low < offset and core.condition.cluster_up:
            if clock() - told > 5:
                told = clock()
                logger.info("%s recovers: %s", core.me, self.recovery)
            core.moved.clear()
            await core.moved.wait()

    async def drain(self, timeout_s: float) -> None:
        """Finish the statements under way, start no new ones, and store the progress."""
        core = self.core
        core.update(draining=True)
        self._applier.stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                while not self._applier.idle:
                    core.moved.clear()
                    await core.moved.wait()
                await core.store()
        except TimeoutError:
            logger.warning("stopping with statements under way; they are finished after a restart")
        core.update(stopped=True)

    # -- writes ----------------------------------------------------------------------------

    async def submit(self, op: Operation, timeout_s: float) -> tuple[int, Outcome]:
        """Put the operation into the log and return its offset and its outcome here.

        An operation whose id the log holds already is not appended again: its first outcome is
        returned. A STALE outcome says that it was appended in vain, and is to be made anew once
        everything up to its offset is applied here. ``op.since`` is what `since` returned when the
        request came; without it, it came now, for the first time. Raises RequestError.
        """
        core = self.core
        if not core.takes_writes or self._applier.stopping:
            raise self.unavailable()
        since = self.since() if op.since is None else op.since
        window, redefines = core.limits.window_records, redefined_by(op)
        op = replace(op, since=since, window=window, own_id=True, redefines=redefines)
        known = core.outcomes.find(op.key)
        known_from = max(core.schedule.read_to - op.window, self._reader.known_from)
        if known is None and since < known_from:
            raise _too_late(op.id)
        offset = known.offset if known is not None else None
        if known is None:
            await core.trace(Step.APPEND_BEFORE)
            offset = await self._append(op)
            await core.trace(Step.APPEND_AFTER)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._outcome(op.key, op.fingerprint, offset)
        except TimeoutError as error:
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"the operation is in the log, but cluster {core.me} did not finish it within "
                f"{timeout_s:g} s",
                error_class=ErrorClass.TIMEOUT,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask again with the same request_id to learn its outcome",
                offset=offset,
            ) from error

    async def repeated(self, key: tuple[str, str], fingerprint: str) -> Attempt | None:
        """Return the operation that the log holds of this request already, once it has an outcome.

        None if none was read here so far. Raises RequestError.
        """
        known = self.core.outcomes.find(key)
        if known is None:
            return None
        offset, outcome = await self._outcome(key, fingerprint, known.offset)
        return Attempt(known.operation, offset, outcome)

    def since(self, age_s: float = 0.0, arrived_s: float | None = None) -> int:
        """Return an offset below which no copy of a request stands.

        It was first sent ``age_s`` before it arrived here, at ``arrived_s`` by the loop's clock.
        """
        core, now_s = self.core, asyncio.get_running_loop().time()
        arrived_s = now_s if arrived_s is None else arrived_s
        arrived_ms = core.unix_ms() - int(1000 * (now_s - arrived_s))
        return core.past.since(age_s, arrived_s, arrived_ms)

    async def _append(self, op: Operation) -> int:
        core = self.core
        try:
            async with asyncio.timeout(core.timeouts.append_s):
                (offset,) = await core.log.append([to_record(op)])
        except RecordTooLargeError as error:
            raise RequestError(
                FailureKind.REFUSED,
                str(error),
                error_class=ErrorClass.OPERATION_TOO_LARGE,
                hint="split it into several operations",
            ) from error
        except (LogError, TimeoutError) as error:
            core.log_failed(error)
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"the log did not take the operation: {message_of(error)}",
                error_class=ErrorClass.LOG_UNAVAILABLE,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask again with the same request_id",
            ) from error
        return offset

    async def _outcome(
        self, key: tuple[str, str], fingerprint: str, offset: int | None
    ) -> tuple[int, Outcome]:
        core = self.core
        answer = asyncio.ensure_future(self._answer(key, fingerprint, offset))
        gone = asyncio.ensure_future(core.out_of_service.wait())
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self.unavailable(WriteOutcome.UNKNOWN, offset)
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _answer(
        self, key: tuple[str, str], fingerprint: str, offset: int | None
    ) -> tuple[int, Outcome]:
        known = await self.core.outcomes.arrival(key, offset)
        if known.operation.fingerprint != fingerprint:
            raise RequestError(
                FailureKind.REFUSED,
                f"request id {key[1]!r} was used for another request (offset {known.offset})",
                error_class=ErrorClass.REQUEST_ID_REUSED,
                hint="use a new request_id for each new request",
            )
        return known.offset, await self.settled(known)

    async def settled(self, known: Known) -> Outcome:
        """Wait until it is known what became of an operation here; raises RequestError."""
        outcome = await self.core.outcomes.outcome(known)
        if outcome.status is Status.EXPIRED:
            raise _too_late(known.operation.id, known.offset)
        if outcome.status is Status.SKIPPED:
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"the operation at offset {known.offset} was skipped on cluster {self.core.me}",
                error_class=ErrorClass.SKIPPED,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask the next HAProc with the same request_id",
                offset=known.offset,
            )
        return outcome

    def unavailable(
        self, outcome: WriteOutcome = WriteOutcome.NOT_SENT, offset: int | None = None
    ) -> RequestError:
        """Return what a client is told while this cluster takes no requests."""
        core = self.core
        return RequestError(
            FailureKind.AVAILABILITY,
            f"cluster {core.me} is {core.state.value}"
            + (f": {core.reason}" if core.reason else ""),
            error_class=ErrorClass(f"HAPROC_{core.state.value}"),
            outcome=outcome,
            hint="ask the next HAProc with the same request_id",
            offset=offset,
        )

    # -- reads -----------------------------------------------------------------------------

    async def applied(self, offset: int) -> None:
        """Wait until everything below the offset is applied here; RequestError if it won't be."""
        core = self.core
        while core.schedule.low < offset:
            if core.state not in SERVING:
                raise self.unavailable()
            core.moved.clear()
            await core.moved.wait()

    async def read_end(self) -> int:
        """Ask the log for its end; raises LogError."""
        end = await self.core.once(self.core.log.end)
        self._log_end = max(self._log_end, end)
        return end

    # -- what peers and operators ask ------------------------------------------------------

    async def apply_now(
        self, offset: int, operation_id: str, timeout_s: float
    ) -> Mapping[str, Json]:
        """Run a peer's synchronous operation before its decision."""
        return await self._synchronous.apply_now(offset, operation_id, timeout_s)

    async def outcome(self, offset: int) -> Mapping[str, Json]:
        """Tell what became of an operation here."""
        known = self.core.outcomes.at(offset)
        if known is None:
            return {"status": "unknown"}
        return {"status": "pending"} if known.outcome is None else describe(known.outcome)

    async def progress(self, seen: str, timeout_s: float) -> Mapping[str, Json]:
        """Tell what is applied here, once that differs from what was ``seen``."""
        return await assurance.progress(self.core, seen, timeout_s)

    def status(self) -> Mapping[str, Json]:
        """Tell the state, the cursor and the lag."""
        core, low = self.core, self.core.schedule.low
        return {
            "cluster": core.me,
            "state": core.state.value,
            "reason": core.reason,
            "drained": core.condition.drained,
            "incarnation": core.identity.incarnation,
            "cursor": low,
            "log_end": self.log_end,
            "lag": self.log_end - low,
            "applying": core.applying,
            "computing": [*self.computing.told],
        }

    @property
    def log_end(self) -> int:
        """The newest known end of the log."""
        return max(self._log_end, self.core.schedule.read_to)

    @property
    def serving(self) -> bool:
        """Whether clients may be let in."""
        return self.core.state in SERVING

    @property
    def recovery(self) -> Recovery:
        """How far the replay has come; zeros when there is none."""
        if self._recovery_from is None:
            return Recovery()
        low, began = self._recovery_from
        seconds = max(asyncio.get_running_loop().time() - began, 1e-3)
        done, remaining = self.core.schedule.low - low, self.log_end - self.core.schedule.low
        rate = done / seconds
        return Recovery(done, remaining, rate, remaining / rate if rate else 0.0)


def _too_late(operation_id: str, offset: int | None = None) -> RequestError:
    return RequestError(
        FailureKind.REFUSED,
        f"request {operation_id!r} was first sent too long ago: it is not known any more whether "
        "an earlier attempt was applied, and this one is not",
        error_class=ErrorClass.RETRY_TOO_LATE,
        sqlstate="08007",
        outcome=WriteOutcome.UNKNOWN,
        hint="look into the tables; if it was not applied, send it under a new request_id",
        offset=offset,
    )


def now_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
