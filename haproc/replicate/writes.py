"""Carries out a client's write: one append to the log, then a wait for the outcome here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dmq import LogError, RecordTooLargeError
from haproc import tracing
from haproc.failure import (
    ErrorClass,
    FailureKind,
    RequestError,
    WriteOutcome,
    log_unavailable,
    refused,
)
from haproc.offloop import by_size
from haproc.replicate.agree.assurance import nothing_computes
from haproc.replicate.log_state.definitions import names_all
from haproc.replicate.member.condition import OutOfServiceError
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import Known, OperationOutcome, OutcomeStatus
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation

_OF_THE_TIMEOUT: Final = 0.9
"""The part of the client's timeout after which a wait ends, so that the client still gets the
reason."""


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """An operation in the log, with its outcome on this cluster."""

    facts: Facts
    offset: int
    outcome: OperationOutcome


class Writes:
    """Puts clients' writes into the log and waits for their outcomes.

    ``known_from`` returns the offset from which on all request ids are known. ``stopping`` returns
    True if this cluster starts no new statements.
    """

    def __init__(
        self, core: Core, known_from: Callable[[], int], stopping: Callable[[], bool]
    ) -> None:
        self._core = core
        self._known_from = known_from
        self._stopping = stopping

    async def clear(self, op: Operation, timeout_s: float) -> None:
        """Wait, before DDL is appended, for computations of tables that conflict with it.

        In the log the DDL would hold up all operations behind it meanwhile. Raises RequestError
        before ``timeout_s``, the client's timeout, is over.
        """
        core = self._core
        if not op.exclusive or core.outcomes.find(op.key) is not None:
            return
        op = replace(op, named=await by_size(op.size_bytes, names_all, op))
        if op.exclusive:
            await nothing_computes(core, _OF_THE_TIMEOUT * timeout_s, op)

    async def submit(
        self, op: Operation, timeout_s: float, logged: Callable[[], None] | None = None
    ) -> tuple[int, OperationOutcome]:
        """Append the operation to the log; return its offset, and its outcome on this cluster.

        If the log has its request id already, nothing is appended, and the outcome of that
        operation is returned. After the outcome STALE the caller must make a new operation, once
        everything up to the offset is applied here. ``op.since``: the result of `since` when the
        request came. ``logged`` is called once the log has the operation. Raises RequestError.
        """
        core = self._core
        if not core.condition.takes_writes or self._stopping():
            raise self.unavailable()
        op = replace(
            op,
            window=core.limits.window_records,
            named=await by_size(op.size_bytes, names_all, op),
        )
        key, fingerprint = op.key, op.fingerprint
        known = core.outcomes.find(key)
        known_from = max(core.schedule.read_to - op.window, self._known_from())
        if known is None and op.since < known_from:
            raise _too_late(op.id)
        offset = known.offset if known is not None else None
        if known is None:
            await core.trace(Step.APPEND_BEFORE)
            appending = self._append(op)
            del op  # may be large; from here on its key is enough
            offset = await appending
            tracing.reached(tracing.DURABLE, offset)
            await core.trace(Step.APPEND_AFTER)
        if logged is not None:
            logged()
        try:
            offset, outcome = await self._outcome(key, fingerprint, offset, timeout_s)
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
        tracing.reached(tracing.APPLIED, offset)
        return offset, outcome

    async def repeated(self, key: tuple[str, str], fingerprint: str) -> WriteAttempt | None:
        """If the request came before and is in the log, wait for its outcome and return it.

        None if this HAProc has read no operation with its id (``key``: user and id). Raises
        RequestError, also if that id belongs to another request (``fingerprint``).
        """
        known = self._core.outcomes.find(key)
        if known is None:
            return None
        offset, outcome = await self._outcome(key, fingerprint, known.offset)
        return WriteAttempt(known.facts, offset, outcome)

    async def fence(self, name: str) -> int:
        """Append a fence on the table or view ``name``; return its offset. Raises RequestError.

        A later write that rests on the name is applied only if it was analyzed after the fence.
        """
        return await self._appended(Fence(name))

    def since(self, age_s: float = 0.0, arrived_s: float | None = None) -> int:
        """Return an offset below which the log cannot have an earlier copy of a request.

        The request was first sent ``age_s`` before it arrived; ``arrived_s``: its arrival by the
        event loop's clock; None: now.
        """
        core, now_s = self._core, asyncio.get_running_loop().time()
        arrived_s = now_s if arrived_s is None else arrived_s
        arrived_ms = core.unix_ms() - int(1000 * (now_s - arrived_s))
        return core.log_state.past.since(age_s, arrived_s, arrived_ms)

    async def _append(self, op: Operation) -> int:
        appending = self._appended(op)
        del op
        try:
            return await appending
        except RecordTooLargeError as error:
            hint = "split it into several operations"
            raise refused(ErrorClass.OPERATION_TOO_LARGE, str(error), hint) from error

    async def _appended(self, message: Operation | Fence) -> int:
        core = self._core
        appending = core.own_log.append_once(message)
        del message
        try:
            return await appending
        except RecordTooLargeError:
            raise
        except (LogError, TimeoutError) as error:
            core.condition.log_failed(error)
            what, hint = "the log did not take the operation", "ask again with the same request_id"
            raise log_unavailable(what, error, hint) from error

    async def _outcome(
        self,
        key: tuple[str, str],
        fingerprint: str,
        offset: int | None,
        timeout_s: float | None = None,
    ) -> tuple[int, OperationOutcome]:
        try:
            async with self._core.condition.in_service(timeout_s):
                return await self._answer(key, fingerprint, offset)
        except OutOfServiceError as error:
            raise self.unavailable(WriteOutcome.UNKNOWN, offset) from error

    async def _answer(
        self, key: tuple[str, str], fingerprint: str, offset: int | None
    ) -> tuple[int, OperationOutcome]:
        known = await self._core.outcomes.arrival(key, offset)
        if known.facts.fingerprint != fingerprint:
            raise RequestError(
                FailureKind.REFUSED,
                f"request id {key[1]!r} was used for another request (offset {known.offset})",
                error_class=ErrorClass.REQUEST_ID_REUSED,
                hint="use a new request_id for each new request",
            )
        return known.offset, await self.settled(known)

    async def settled(self, known: Known) -> OperationOutcome:
        """Wait for the outcome of an operation on this cluster, and return it.

        Raises RequestError if the operation came too late, or was skipped on this cluster.
        """
        outcome = await self._core.outcomes.outcome(known)
        if outcome.status is OutcomeStatus.EXPIRED:
            raise _too_late(known.facts.id, known.offset)
        if outcome.status is OutcomeStatus.SKIPPED:
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"the operation at offset {known.offset} was skipped on cluster {self._core.me}",
                error_class=ErrorClass.SKIPPED,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask the next HAProc with the same request_id",
                offset=known.offset,
            )
        return outcome

    def unavailable(
        self, outcome: WriteOutcome = WriteOutcome.NOT_SENT, offset: int | None = None
    ) -> RequestError:
        """Return the error for a client whose request this cluster cannot take in its state.

        ``outcome``: what is known of the write's effect. ``offset``: the operation's, if it is in
        the log.
        """
        core = self._core
        return RequestError(
            FailureKind.AVAILABILITY,
            f"cluster {core.me} is {core.condition.state.value}"
            + (f": {core.condition.reason}" if core.condition.reason else ""),
            error_class=ErrorClass(f"HAPROC_{core.condition.state.value}"),
            outcome=outcome,
            hint="ask the next HAProc with the same request_id",
            offset=offset,
        )


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
    """Return the present Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
