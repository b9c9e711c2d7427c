"""Computes the rows of operations, and appends them to the log.

The responsible cluster runs the query: the operation's origin, or the next cluster if that failed.
It does so when the operation's turn has come: all conflicting operations before it are applied, and
those after it wait. So the query reads exactly the tables as of its place. The query may run
again, on another cluster or after a restart. It only reads, and the first ``rows`` record counts.

An error of the statement rejects the operation everywhere. After an error of the cluster the next
cluster tries. When every cluster has failed often enough, the query counts as the cause. The
records are in `replicate.records.rows`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from msgspec import structs

from dmq import RecordTooLargeError
from haproc.classify.model import RefusedError
from haproc.engine.confs import pool_of_rows
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane, Queries, Session, Settings
from haproc.engine.placeholder import with_rows, with_table
from haproc.engine.statement import ArrowRows, RowsInLog, SparkPlan, Statement
from haproc.failure import ErrorClass
from haproc.offloop import by_size
from haproc.replicate.apply.materialise import (
    ComputedRows,
    Keep,
    RowsSource,
    collected,
    filling_of,
    in_budget,
    materialise,
    of_one_session,
    query_of,
    rows_gone,
    settings_of_query,
)
from haproc.replicate.apply.staging_tables import StagingTables
from haproc.replicate.apply.synchronous import progressing
from haproc.replicate.log_state.computations import exhausted, responsible
from haproc.replicate.log_state.failure_votes import QUERY_CANCELED
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome
from haproc.replicate.queue.units import Unit
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.rows import (
    ApplicationFailure,
    ComputedPlan,
    Part,
    Passed,
    QueryWrite,
    Rows,
    SessionRef,
    SpooledRows,
)

logger = logging.getLogger(__name__)

Rebuild: TypeAlias = Callable[[SessionRef], Awaitable[Session]]
NAMED_MAX: Final = 1000
"""The most operations in the answer to a peer that asks what this cluster computes. The peer may
needlessly take over the others."""


@dataclass(frozen=True, slots=True)
class _AttachedSession:
    """A client's session that was attached to an operation.

    ``epoch``: the session's epoch then. If it is a later one now, the content is lost.
    """

    session: Session
    epoch: int
    unchanged: Callable[[], bool]

    @property
    def is_there(self) -> bool:
        """True if Spark still has the session with its content."""
        return self.session.epoch == self.epoch and self.session.stands

    @property
    def is_as_it_was(self) -> bool:
        """True if the session is there, and no statement of its client has begun to change it."""
        return self.is_there and self.unchanged()


class Computing:
    """Computes the rows of operations, and makes the statements that write them on this cluster."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._staging_tables = StagingTables(core)
        self._under_way: set[int] = set()
        self._permits = asyncio.Semaphore(core.limits.lanes)
        self._sessions: OrderedDict[tuple[str, str], _AttachedSession] = OrderedDict()
        self._attached_rows: dict[tuple[str, str], RowsSource] = {}
        self._observed: dict[int, tuple[bytes, ...]] = {}
        """By offset: the results of Spark's observations, for the operations that run here now."""
        self._sessions_made = 0
        self.rebuild: Rebuild = no_sessions
        """Makes a client's session again, if this HAProc does not have it or has lost it. Raises
        EngineError, and RefusedError (`session_gone`) if the session does not exist any more."""

    # -- calls of other modules ------------------------------------------------------------

    def attach_session(
        self,
        key: tuple[str, str],
        session: Session,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let an operation's query run in the session of the client that sent it, as it is now.

        ``unchanged``: returns True until the client begins to change that session.
        """
        if (attached := self._sessions.get(key)) and attached.session is session:
            return  # its first epoch counts: it may have lost its content since
        self._sessions[key] = _AttachedSession(session, session.epoch, unchanged)
        limits = self._core.limits
        if len(self._sessions) > limits.statements_max + limits.writes_waiting_max:
            self._sessions.popitem(last=False)  # no request waits for the oldest any more

    def detach_session(self, key: tuple[str, str]) -> None:
        """Forget the session that was attached to an operation."""
        self._sessions.pop(key, None)

    def attach_rows(self, key: tuple[str, str], rows: RowsSource) -> None:
        """Let an operation's rows be taken from the request that brought them."""
        self._attached_rows[key] = rows

    def detach_rows(self, key: tuple[str, str]) -> None:
        """Forget the rows that were attached to an operation."""
        self._attached_rows.pop(key, None)

    def look(self) -> None:
        """Begin to compute the rows that this cluster is responsible for now."""
        for offset, op in self._core.schedule.uncomputed():
            if self.responsible(offset, op) == self._core.me:
                self.begin(offset, op)

    def responsible(self, offset: int, op: Operation) -> str:
        """Return the cluster that is to compute an operation's rows.

        If the query needs the client's own session, only the origin can, however often it failed.
        """
        core = self._core
        if of_one_session(op):
            return op.origin
        return responsible(
            core.members.order, op.origin, core.log_state.computations.passes(offset)
        )

    def begin(self, offset: int, op: Operation) -> bool:
        """Begin to compute an operation's rows in its turn; False if this cluster must not.

        It must not if it computes them already, or is DIVERGED: the others would get wrong rows.
        It also must not if the operation has no rows to compute.
        """
        if not op.computed:
            return False
        if offset in self._under_way or self._core.condition.now.diverged is not None:
            return False
        self._under_way.add(offset)
        self._core.tasks.spawn(self._run(offset, op))
        return True

    async def refuse(self, offset: int, op: Operation) -> None:
        """Reject an operation because every cluster is DIVERGED, so that the queue goes on."""
        why = "every cluster is DIVERGED: what its query finds on one must not become everybody's"
        await self._core.own_log.append(
            self._rejected(offset, op, ApplicationFailure(ErrorClass.NO_ROWS, "", why))
        )

    @property
    def offsets(self) -> list[int]:
        """The operations that this cluster computes rows for, by offset: the first NAMED_MAX."""
        return sorted(self._under_way)[:NAMED_MAX] if self._core.condition.applying else []

    async def clean(self) -> None:
        """Drop the staging tables that earlier processes left."""
        await self._staging_tables.clean()

    async def write(self, unit: Unit, lane: Lane) -> Statement:
        """Return the statement to run for a unit, with its rows if they were computed.

        Raises EngineError if this cluster cannot collect the rows: the unit is not at fault.
        """
        core = self._core
        # Joining thousands of small streams of rows takes long.
        write = await by_size(sum(op.size_bytes for op in unit.operations[1:]), unit.write)
        if isinstance(write, RowsInLog):
            return structs.replace(write, fetch=partial(self._streams, unit))
        if not isinstance(write, QueryWrite | ComputedPlan | SpooledRows):
            return write
        found = core.log_state.computations.found(unit.version)
        assert found is not None
        entries = await core.own_log.read_log(found.place, records_max=1)
        rows = from_record(entries[0].record)
        assert isinstance(rows, Rows) and rows.offset == unit.version
        filling = rows.filling
        assert filling is not None
        if filling.observed:
            self._observed[unit.version] = filling.observed
        if not filling.parts:
            plan = await by_size(len(filling.rows), with_rows, filling.plan, filling.rows)
            return SparkPlan(plan)
        table = await self._staging_tables.stage(rows, filling, lane)
        return SparkPlan(with_table(filling.plan, table))

    async def _streams(self, unit: Unit) -> AsyncGenerator[bytes, None]:
        """Yield the rows of a unit's operations; large ones are read from the log again."""
        for offset, op in zip(unit.offsets, unit.operations, strict=True):
            if isinstance(op.write, RowsInLog):
                op = await self._core.own_log.operation(offset)
            assert isinstance(op.write, ArrowRows)
            yield op.write.rows

    async def vanished(self, unit: Unit) -> EngineError | None:
        """Return an error if the unit's staging table is gone: the unit is not at fault then."""
        return await self._staging_tables.vanished(unit.version)

    async def over(self, unit: Unit, lane: Lane) -> None:
        """Drop the staging tables and observations of a unit that is done."""
        self._observed.pop(unit.version, None)
        await self._staging_tables.drop(unit.version, lane)

    def counted(self, unit: Unit, outcome: OperationOutcome) -> OperationOutcome:
        """Return the outcome with the number of added rows, and with the query's observations.

        Spark reports neither, because it ran only the statement with the computed rows.
        """
        found = self._core.log_state.computations.found(unit.version)
        if found is None:
            return outcome
        applied = replace(outcome.applied, observed=self._observed.get(unit.version, ()))
        if applied.affected_rows is None:
            applied = replace(applied, affected_rows=found.count)
        return replace(outcome, applied=applied)

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
            found = self._core.log_state.computations.found(offset)
            if found is not None:
                self._sessions.pop(op.key, None)
            if found is None or found.failure or not self._core.schedule.expects(offset):
                self._staging_tables.not_needed(offset)
            self._core.news.changed()

    async def _known(self, offset: int) -> None:
        """Wait until the operation's rows are in the log, or the operation is done here."""
        core = self._core
        found, expects = core.log_state.computations.found, core.schedule.expects
        await core.news.until(lambda: found(offset) is not None or not expects(offset))

    async def _compute(self, offset: int, op: Operation) -> None:
        core = self._core
        passes = core.log_state.computations.passes(offset).get(core.me, 0)
        await asyncio.sleep(self._pause_s(passes))
        async with self._permits:
            await core.condition.allowed()
            # The log may have the rows already: then the end of `_known` cancels this.
            await core.watermarks.until_known(await core.own_log.reaching(core.log.end))
            message = await self._message(offset, op)
        if core.condition.now.diverged is not None:
            return  # it became DIVERGED meanwhile: another cluster must compute the rows
        try:
            place = await core.own_log.append(message)
        except RecordTooLargeError as error:
            place = await core.own_log.append(
                self._rejected(
                    offset,
                    op,
                    ApplicationFailure(ErrorClass.TOO_LARGE_TO_MATERIALISE, "", str(error)),
                )
            )
        await core.trace(Step.ROWS_AFTER)
        await core.watermarks.until_known(place + 1)

    async def _message(self, offset: int, op: Operation) -> Rows | Passed:
        core = self._core
        await core.trace(Step.ROWS_BEFORE)
        try:
            found = await in_budget(op, self._found(offset, op))
            filling = filling_of(op, found)
            # If the storage is away, tables may seem empty: no cluster must get such a result.
            await core.engine.check_tables(())
        except RefusedError as error:
            state = QUERY_CANCELED if error.error_class == ErrorClass.REVOKED else ""
            failure = ApplicationFailure(
                error.error_class, state, _advice(error.message, error.hint)
            )
            return self._rejected(offset, op, failure)
        except EngineError as error:
            doubt = await self._refuted(op) if error.kind is ErrorKind.APPLICATION else error
            cause = doubt or error
            failure = ApplicationFailure.of(cause)
            if doubt is None:
                return self._rejected(offset, op, failure)
            logger.warning("offset %d: its rows: %s: %s", offset, doubt.kind, doubt.message)
            if doubt.kind is ErrorKind.AVAILABILITY:
                core.health.suspect(doubt.message)
        except Exception as error:  # a fault of this process, such as memory: not of the query
            logger.exception("offset %d: its rows cannot be written", offset)
            failure = ApplicationFailure(
                ErrorClass.CANNOT_MATERIALISE, "", f"the rows cannot be written: {error!r}"
            )
        else:
            await core.trace(Step.ROWS_COMPUTED)
            epoch, count = core.own_log.epoch, found.count
            return Rows(offset, op.id, core.me, epoch, count=count, filling=filling)
        if await self._hopeless(offset, op):
            return self._rejected(offset, op, failure)
        return Passed(offset, op.id, core.me, core.own_log.epoch, failure)

    async def _refuted(self, op: Operation) -> EngineError | None:
        """Return an error of the cluster that may be the cause of the query's error, or None."""
        try:
            await self._core.engine.check_tables(sorted(op.reads))
        except EngineError as error:
            return error
        return None

    def _rejected(self, offset: int, op: Operation, failure: ApplicationFailure) -> Rows:
        return Rows(offset, op.id, self._core.me, self._core.own_log.epoch, failure=failure)

    async def _found(self, offset: int, op: Operation) -> ComputedRows:
        """Return the rows of the operation's query; raises as `materialise`, or `session_gone`."""
        query, attached = query_of(op), self._sessions.get(op.key)
        if isinstance(op.write, SpooledRows):
            return await self._found_in_request(offset, op, query)
        only_there = of_one_session(op)
        # A session that its client has changed is made again as it was, if it can be.
        if attached is not None and (attached.is_there if only_there else attached.is_as_it_was):
            try:
                found = await self._run_in_attached_session(
                    offset, op, query, attached.session, attached.epoch
                )
            except (EngineError, RefusedError):
                if only_there or attached.is_as_it_was:
                    raise
            else:
                if only_there or attached.is_as_it_was:  # it may have been changed meanwhile
                    return found
        if only_there:
            raise session_gone(op.origin)
        session = await self._own_session(op)
        try:
            return await self._materialise(offset, op, query, session)
        finally:
            await session.aclose()

    async def _found_in_request(self, offset: int, op: Operation, query: Statement) -> ComputedRows:
        """Return the rows that came with the request; raises `rows_gone` if they are lost."""
        rows = self._attached_rows.get(op.key)
        if rows is None:
            raise rows_gone(op.origin)
        session = await self._own_session(op)
        try:
            schema = await session.schema(query)
        finally:
            await session.aclose()
        return await collected(rows, schema, self._keeping(offset, op), self._core.limits)

    async def _run_in_attached_session(
        self, offset: int, op: Operation, query: Statement, session: Session, epoch: int
    ) -> ComputedRows:
        """Run the query in its client's session; fail if Spark has lost that since ``epoch``.

        A lost session is not recreated here: that waits for the log, so for this operation, too.
        """
        try:
            found = await self._materialise(offset, op, query, session.as_it_is())
        except EngineError as error:
            lost = error.kind is ErrorKind.AVAILABILITY or session.epoch != epoch
            if lost and of_one_session(op):
                raise session_gone(op.origin) from error
            raise
        if session.epoch != epoch and of_one_session(op):
            raise session_gone(op.origin)
        return found

    async def _own_session(self, op: Operation) -> Session:
        """Return a new session for this query: a used one remembers a table's old files."""
        if isinstance(op.write, QueryWrite | ComputedPlan) and op.write.session is not None:
            session = await self.rebuild(op.write.session)
        else:
            session = self._new_session(op.user)
        # The journal keeps only the newest settings, which may be later than the operation.
        return await _configured(session, settings_of_query(op))

    def _new_session(self, user: str) -> Session:
        self._sessions_made += 1
        key = f"rows/{self._core.own_log.epoch}/{self._sessions_made}"
        return self._core.engine.session(key, pool=pool_of_rows(user))

    async def _materialise(
        self, offset: int, op: Operation, query: Statement, session: Queries
    ) -> ComputedRows:
        core, keep = self._core, self._keeping(offset, op)
        stage, timeout_s = lambda: self._stage(offset, op.user), core.timeouts.apply_s
        found = await materialise(query, session, stage, keep, core.limits, timeout_s)
        if found.table:
            self._staging_tables.computed(offset, found.table, found.parts)
        return found

    def _keeping(self, offset: int, op: Operation) -> Keep:
        """Return a function that appends the rows of an operation to the log, part by part."""
        core = self._core

        async def keep(number: int, rows: bytes) -> int:
            await core.trace(Step.PART_BEFORE)
            epoch, now_ms = core.own_log.epoch, core.unix_ms()
            part = Part(offset, op.id, core.me, epoch, number, now_ms, rows)
            place = await core.own_log.append(part)
            await core.trace(Step.PART_AFTER)
            return place

        return keep

    @contextlib.asynccontextmanager
    async def _stage(self, offset: int, user: str) -> AsyncIterator[tuple[str, Session]]:
        """Yield the name of a new staging table, and a new session in which to read the table."""
        table, session = await self._staging_tables.new(offset), self._new_session(user)
        try:
            yield table, await _configured(session, Settings())
        except BaseException:
            self._staging_tables.over.append(table)
            raise
        finally:
            await session.aclose()

    async def _hopeless(self, offset: int, op: Operation) -> bool:
        """True if all clusters that can compute the rows failed so often that none tries again."""
        core = self._core
        passes = dict(core.log_state.computations.passes(offset))
        passes[core.me] = passes.get(core.me, 0) + 1
        attempts_max = core.timeouts.stuck_after_attempts
        if not exhausted([core.me], passes, attempts_max):
            return False
        if of_one_session(op):
            return True
        trying = [peer for peer in core.members.peers if await progressing(core, peer)]
        return exhausted(trying, passes, attempts_max)

    def _pause_s(self, attempts: int) -> float:
        timeouts = self._core.timeouts
        return min(timeouts.retry_first_s * 2**attempts, timeouts.retry_max_s) if attempts else 0.0


async def _configured(session: Session, settings: Settings) -> Session:
    """Configure a session and return it; close it if that fails."""
    try:
        await session.configure(settings)
    except BaseException:
        await session.aclose()
        raise
    return session


def session_gone(origin: str) -> RefusedError:
    """Return the error of a write that needs a session which is gone; it may be sent again."""
    return RefusedError(
        ErrorClass.SESSION_GONE,
        "the query rests on the session of the client that sent it (temporary views, variables), "
        f"and that session is gone from cluster {origin}",
        "run the session's statements again, then the write",
    )


async def no_sessions(ref: SessionRef) -> Session:
    """Raise `session_gone`. The `Rebuild` of a HAProc that has no sessions of clients."""
    raise session_gone("(its origin)")


def _advice(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message
