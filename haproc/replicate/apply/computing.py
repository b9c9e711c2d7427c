"""Computes the rows of operations whose turn has come, and puts them into the log.

`replicate.records.rows` says what the log holds of it. The cluster that is responsible (the
operation's origin, as long as it can) runs the query as soon as the operation's turn has come
here: what stands before it is applied, and what stands behind it waits, so the query sees exactly
what it is to see. That it runs again, on another cluster or after a restart, does no harm: it
only reads, and of what it gives the first in the log counts.

An error that the statement is to blame for rejects the operation everywhere. Where the cluster is
to blame, the next one tries; when all that can have tried often enough, the query is to blame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from dmq import RecordTooLargeError
from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session
from haproc.engine.statement import SqlText, Statement
from haproc.failure import ErrorClass
from haproc.pin.model import Source
from haproc.replicate.apply.liveness import progressing
from haproc.replicate.apply.materialise import materialise
from haproc.replicate.heard.computations import exhausted, responsible
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import Outcome
from haproc.replicate.queue.units import Unit
from haproc.replicate.records.failures import Failure
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.rows import Passed, QueryWrite, Rows

logger = logging.getLogger(__name__)

SESSIONS_KEPT_MAX: Final = 1000
"""Clients' sessions that queries rest on which have not run yet, like ``limits.sessions_max``."""
TOLD_MAX: Final = 1000
"""Operations named to a peer that asks; of the others it may take over some for nothing."""


class Computing:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._under_way: set[int] = set()
        self._places = asyncio.Semaphore(core.limits.lanes)
        self._sessions: OrderedDict[tuple[str, str], tuple[Session, int]] = OrderedDict()
        """Those that clients lent, each with its epoch: later ones lack what it held."""
        self._sessions_made = 0

    # -- what others ask for ---------------------------------------------------------------

    def lend(self, key: tuple[str, str], session: Session) -> None:
        """Let an operation's query run in the session of the client that sent it, as it is now."""
        if (lent := self._sessions.get(key)) and lent[0] is session:
            return  # it may have lost meanwhile what it held
        self._sessions[key] = session, session.epoch
        if len(self._sessions) > SESSIONS_KEPT_MAX:
            self._sessions.popitem(last=False)

    def look(self) -> None:
        """Begin with what is this cluster's to compute now."""
        for offset, op in self._core.schedule.uncomputed():
            if self.responsible(offset, op) == self._core.me:
                self.begin(offset, op)

    def responsible(self, offset: int, op: Operation) -> str:
        """Return the cluster that is to compute an operation's rows.

        Where the query rests on a session, no other one can, however often its origin passed.
        """
        core = self._core
        if _of_session(op):
            return op.origin
        return responsible(core.members.order, op.origin, core.heard.computations.passes(offset))

    def begin(self, offset: int, op: Operation) -> bool:
        """Compute the rows of an operation whose turn has come here, unless that is under way.

        A cluster that is known to differ from the others must not make its rows theirs. One that
        has no rows to be computed waited for a decision that has come meanwhile.
        """
        if not op.computed:
            return False
        if offset in self._under_way or self._core.condition.now.diverged is not None:
            return False
        self._under_way.add(offset)
        self._core.tasks.spawn(self._run(offset, op))
        return True

    async def refuse(self, offset: int, op: Operation) -> None:
        """Reject an operation whose rows no cluster may compute, so that its queue goes on."""
        why = "every cluster is DIVERGED: what its query finds on one must not become everybody's"
        await self._core.own_log.append(
            self._rejected(offset, op, Failure(ErrorClass.NO_ROWS, "", why))
        )

    @property
    def told(self) -> list[int]:
        """The operations whose rows this cluster is at, the first ones."""
        return sorted(self._under_way)[:TOLD_MAX] if self._core.condition.applying else []

    async def write(self, unit: Unit) -> Statement:
        """Return the statement to run for a unit, with its rows if they were computed."""
        core, write = self._core, unit.write()
        if not isinstance(write, QueryWrite):
            return write
        found = core.heard.computations.found(unit.version)
        assert found is not None
        entries = await core.own_log.read(found.place, records_max=1)
        rows = from_record(entries[0].record)
        assert isinstance(rows, Rows) and rows.offset == unit.version
        return SqlText(rows.sql)

    def counted(self, unit: Unit, outcome: Outcome) -> Outcome:
        """Return an outcome that tells how many rows were added, which Spark does not."""
        found = self._core.heard.computations.found(unit.version)
        if found is None or outcome.applied.affected_rows is not None:
            return outcome
        return replace(outcome, applied=replace(outcome.applied, affected_rows=found.count))

    # -- computing -------------------------------------------------------------------------

    async def _run(self, offset: int, op: Operation) -> None:
        known = asyncio.ensure_future(self._known(offset))
        work = asyncio.ensure_future(self._compute(offset, op))
        try:
            await asyncio.wait([known, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            known.cancel()
            work.cancel()
            await asyncio.gather(known, work, return_exceptions=True)
            self._under_way.discard(offset)
            if self._core.heard.computations.found(offset) is not None:
                self._sessions.pop(op.key, None)
            self._core.news.changed()

    async def _known(self, offset: int) -> None:
        """Wait until the operation needs nobody's rows any more."""
        core = self._core
        found, expects = core.heard.computations.found, core.schedule.expects
        await core.news.until(lambda: found(offset) is not None or not expects(offset))

    async def _compute(self, offset: int, op: Operation) -> None:
        core = self._core
        passes = core.heard.computations.passes(offset).get(core.me, 0)
        await asyncio.sleep(self._pause_s(passes))
        async with self._places:
            await core.condition.allowed()
            # Somebody may have computed them already, before this process began.
            await core.watermarks.heard(await core.own_log.reaching(core.log.end))
            message = await self._message(offset, op)
        if core.condition.now.diverged is not None:
            return  # found only now: another one is to compute them
        try:
            place = await core.own_log.append(message)
        except RecordTooLargeError as error:
            place = await core.own_log.append(
                self._rejected(
                    offset, op, Failure(ErrorClass.TOO_LARGE_TO_MATERIALISE, "", str(error))
                )
            )
        await core.trace(Step.ROWS_AFTER)
        await core.watermarks.heard(place + 1)

    async def _message(self, offset: int, op: Operation) -> Rows | Passed:
        core = self._core
        await core.trace(Step.ROWS_BEFORE)
        try:
            sql, count = await self._rows(op)
            # Tables whose storage is away may look empty, which would become so everywhere.
            await core.engine.check_tables(())
        except RefusedError as error:
            failure = Failure(error.error_class, "", _advice(error.message, error.hint))
            return self._rejected(offset, op, failure)
        except EngineError as error:
            doubt = await self._refuted(op) if error.kind is ErrorKind.APPLICATION else error
            told = doubt or error
            failure = Failure(told.error_class, told.sqlstate, told.message)
            if doubt is None:
                return self._rejected(offset, op, failure)
            logger.warning("offset %d: its rows: %s: %s", offset, doubt.kind, doubt.message)
            if doubt.kind is ErrorKind.AVAILABILITY:
                core.health.suspect(doubt.message)
        except Exception as error:  # a fault of this process, be it memory, is no word on the query
            logger.exception("offset %d: its rows cannot be written", offset)
            failure = Failure(
                ErrorClass.CANNOT_MATERIALISE, "", f"the rows cannot be written: {error!r}"
            )
        else:
            await core.trace(Step.ROWS_COMPUTED)
            return Rows(offset, op.id, core.me, core.own_log.epoch, sql, count)
        if await self._hopeless(offset, op):
            return self._rejected(offset, op, failure)
        return Passed(offset, op.id, core.me, core.own_log.epoch, failure)

    async def _refuted(self, op: Operation) -> EngineError | None:
        """Return why an application error may be none of the query's, if it may be so."""
        try:
            await self._core.engine.check_tables(sorted(op.reads))
        except EngineError as error:
            return error
        return None

    def _rejected(self, offset: int, op: Operation, failure: Failure) -> Rows:
        return Rows(offset, op.id, self._core.me, self._core.own_log.epoch, failure=failure)

    async def _rows(self, op: Operation) -> tuple[str, int]:
        """Run the query; raises EngineError, and RefusedError if its rows cannot be had."""
        core, write = self._core, op.write
        assert isinstance(write, QueryWrite)
        source = Source(write.head, write.query)
        if write.of_session:
            session, epoch = self._sessions.get(op.key, (None, 0))
            if session is None or session.epoch != epoch:
                raise _session_gone(op.origin)
            try:
                found = await materialise(source, session, core.limits, core.timeouts.apply_s)
            except EngineError as error:
                if error.kind is ErrorKind.AVAILABILITY or session.epoch != epoch:
                    raise _session_gone(op.origin) from error
                raise
            if session.epoch != epoch:
                raise _session_gone(op.origin)
            return found
        # A session of its own: others remember what files a table of files had.
        self._sessions_made += 1
        session = core.engine.session(f"rows/{core.own_log.epoch}/{self._sessions_made}")
        try:
            await session.configure(op.settings)
            return await materialise(source, session, core.limits, core.timeouts.apply_s)
        finally:
            await session.aclose()

    async def _hopeless(self, offset: int, op: Operation) -> bool:
        """Whether all clusters that can have now failed so often that another try is no use."""
        core = self._core
        passes = dict(core.heard.computations.passes(offset))
        passes[core.me] = passes.get(core.me, 0) + 1
        attempts_max = core.timeouts.stuck_after_attempts
        if not exhausted([core.me], passes, attempts_max):
            return False
        if _of_session(op):
            return True
        trying = [peer for peer in core.members.peers if await progressing(core, peer)]
        return exhausted(trying, passes, attempts_max)

    def _pause_s(self, attempts: int) -> float:
        timeouts = self._core.timeouts
        return min(timeouts.retry_first_s * 2**attempts, timeouts.retry_max_s) if attempts else 0.0


def _of_session(op: Operation) -> bool:
    return isinstance(op.write, QueryWrite) and op.write.of_session


def _session_gone(origin: str) -> RefusedError:
    return RefusedError(
        ErrorClass.SESSION_GONE,
        "the query rests on the session of the client that sent it (temporary views, variables), "
        f"and that session is gone from cluster {origin}",
        "run the session's statements again, then the write, with a new request_id",
    )


def _advice(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message
