"""Sends a request to the servers of a ring by the failover policy; opens the session for it."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from haclient import failover, protocol
from haclient.aio.transport import Lock, StateLock, Transport, now, race, sleep, spawn
from haclient.aio.view import AsyncView
from haclient.choosing import Hedging
from haclient.exceptions import DatabaseError, Failure, FailureKind, Outcome, error_from
from haclient.failover import Action, AttemptEnd, Done, GiveUp, Memory, Pause, Progress, Reason, Try
from haclient.protocol import NotReached, Rejected, WireError, end_of
from haclient.settings import Failover, Server, Settings

# A session of the ring: opened when the first statement needs one (the server reports it).
#
# Its id is made here and goes with each statement, to any server: the ring keeps the session's
# content.


class AsyncSession:
    """A connection's session in the ring; it is opened when the first statement needs it."""

    def __init__(self, transport: Transport, headers: dict[str, str], start: list[str]) -> None:
        self.id: str | None = None
        self._transport = transport
        self._headers = {**headers, "Content-Type": "application/json"}
        self._begin_with = start
        self._opened = False
        self._lock = Lock()

    def start(self) -> None:
        """From now on the connection needs a session: give it an id."""
        self.id = self.id or str(uuid.uuid4())

    async def ensure(self, server: Server, deadline: float) -> str | None:
        """Open the session if it is needed and not open; return its id.

        Returns None if none is needed.
        """
        if self.id is None or self._opened:
            return self.id
        async with self._lock:
            if not self._opened:
                await self._open(server, deadline)
        return self.id

    async def _open(self, server: Server, deadline: float) -> None:
        body = protocol.opening_body(self._begin_with)
        path = protocol.session_path(str(self.id))
        try:
            status, answer = await exchange(
                self._transport, server, "PUT", path, self._headers, body, deadline
            )
        except WireError as error:
            # The statement itself has not been sent yet.
            raise NotReached(str(error)) from error
        if status != 200:
            failure = protocol.failure(status, answer)
            message = f"the session could not be opened: {failure.message}"
            # The statement itself was not sent, so it has no place in the log.
            raise Rejected(
                replace(failure, message=message, outcome=Outcome.NOT_SENT, log_offset=None)
            )
        self._opened = True

    async def close(self, server: Server, deadline: float) -> None:
        """Close the session on this server. An error is ignored: an idle session ends anyway."""
        if self.id is None or not self._opened:
            return
        path = protocol.session_path(self.id)
        with contextlib.suppress(WireError):
            await exchange(self._transport, server, "DELETE", path, self._headers, b"", deadline)


async def exchange(
    transport: Transport,
    server: Server,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    deadline: float,
) -> tuple[int, bytes]:
    """Send a request and read the whole answer; return its status and body.

    Raises WireError.
    """
    response = await transport.request(server, method, path, headers, body, deadline)
    try:
        chunks: list[bytes] = []
        while chunk := await response.read_some():
            chunks.append(chunk)
    finally:
        await response.close()
    return response.status, b"".join(chunks)


# Runs one request against the ring by the failover policy.
#
# The policy (`haclient.failover`) decides; this module sends and waits. The knowledge of the
# servers is in `view`.


T = TypeVar("T")

_SQLSTATES = {
    Reason.DEADLINE: "57014",
    Reason.OUTAGE: "08001",
    Reason.BUSY: "53000",
    Reason.NOT_REPEATABLE: "08007",
}
_SILENT = Failure(FailureKind.AVAILABILITY, "")
_UNEXPLAINED = "clusters failed with it, and none could say why: nested too deep, or too large?"


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """What is done at each server that is tried for a request."""

    attempt: Callable[[Server, float], Awaitable[T]]
    """Sends the request to a server. Raises WireError, or Rejected for an error answer."""
    is_cancelled: Callable[[], bool] = lambda: False
    cancel_at: Callable[[Server], Awaitable[None]] | None = None
    """Cancels the request at a server that was slower than a second one.

    None: no second server is asked.
    """
    discard: Callable[[T], Awaitable[None]] | None = None
    """Discards the result of a server that was slower than a second one."""
    in_doubt: bool = False
    """True if the request was sent before, and may have been carried out."""


@dataclass(frozen=True, slots=True)
class _End(Generic[T]):
    """How one attempt at a server ended: with a result, or with a failure."""

    server: Server
    result: T | None = None
    end: AttemptEnd = AttemptEnd.ANSWERED
    failure: Failure | None = None


class AsyncRing:
    """Sends the requests of one connection to the servers that ``view`` knows."""

    def __init__(self, settings: Settings, view: AsyncView) -> None:
        self.settings = settings
        self.view = view
        self._hedging = Hedging(settings.hedge_after)
        self._lock = StateLock()

    async def try_servers(self, request_id: str, timeout_s: float, work: Work[T]) -> T:
        """Try one server after another until one answers; return the result.

        Raises DatabaseError for an error answer, or when the policy gives up.
        """
        policy = self.settings.policy
        progress, action = self._decide(
            lambda memory: failover.begin(policy, memory, now(), timeout_s, True, work.in_doubt)
        )
        failed: _End[T] | None = None
        last_failure = _SILENT
        while True:
            if isinstance(action, Pause):
                await sleep(action.seconds)
                progress, action = self._resumed(progress)
                continue
            if work.is_cancelled():
                raise error_from(_cancelled(progress), request_id)
            if not isinstance(action, Try):
                assert isinstance(action, GiveUp)
                raise _given_up(action, last_failure, request_id)
            server = self.view.server(action.server)
            if failed is not None:
                self._announce(request_id, failed, server)
            progress, ends = await self._attempt(work, server, progress)
            for early in ends[:-1]:
                progress = self._noted(progress, early)
            failed = ends[-1]
            if failed.failure is not None and failed.end is not AttemptEnd.TIMED_OUT:
                last_failure = failed.failure
            progress, action = self._after(progress, failed)
            if isinstance(action, Done):
                return self._answer(failed, progress, request_id)

    def _answer(self, end: _End[T], progress: Progress, request_id: str) -> T:
        self.view.answered(after_failure=progress.outage_since is not None)
        failure = end.failure
        if failure is None:
            return end.result  # type: ignore[return-value]
        if end.end is AttemptEnd.UNEXPLAINED:
            failure = replace(failure, kind=FailureKind.APPLICATION, hint=_UNEXPLAINED)
        outcome = failover.final_outcome(progress, failure.outcome, failure.log_offset)
        raise error_from(replace(failure, outcome=outcome), request_id) from None

    def _announce(self, request_id: str, failed: _End[T], server: Server) -> None:
        if self.settings.on_failover is not None and failed.failure is not None:
            message = failed.failure.message
            self.settings.on_failover(Failover(request_id, failed.server.url, server.url, message))

    # -- one server, or two ----------------------------------------------------------------

    async def _attempt(
        self, work: Work[T], server: Server, progress: Progress
    ) -> tuple[Progress, list[_End[T]]]:
        """Send the request to ``server``, and to a second one if that one is slow.

        Returns how the attempts ended; the last one decides.
        """
        begun = now()
        after_s = self._hedging.after_s() if work.cancel_at is not None else None
        other = None
        if after_s is not None:
            other = failover.second(self.view.memory, progress, begun)
        if after_s is None or other is None:
            ends = [await _one(work, server, progress.deadline)]
        else:
            beside = self.view.server(other)
            ends = await self._race(work, server, beside, progress.deadline, after_s)
            if any(each.server is beside for each in ends):
                progress = failover.tried(progress, other)
        if work.cancel_at is not None and ends[-1].end is AttemptEnd.ANSWERED:
            with self._lock:
                self._hedging = self._hedging.took(now() - begun)
        return progress, ends

    async def _race(
        self, work: Work[T], first: Server, second: Server, deadline: float, after_s: float
    ) -> list[_End[T]]:
        begun: list[Server] = [first]

        async def go_first() -> _End[T]:
            return await _one(work, first, deadline)

        async def go_second() -> _End[T]:
            begun.append(second)
            return await _one(work, second, deadline)

        async def discard(end: _End[T]) -> None:
            if end.result is not None and work.discard is not None:
                await work.discard(end.result)

        ended: list[_End[T]] = []
        try:
            ended = await race(go_first, go_second, after_s, _answered, discard)
        finally:
            for server in begun:
                if not any(each.server is server for each in ended):
                    self._cancel_beside(work, server)
        return ended

    def _cancel_beside(self, work: Work[T], server: Server) -> None:
        async def cancel() -> None:
            if work.cancel_at is not None:
                await work.cancel_at(server)

        spawn(cancel)

    # -- the policy ------------------------------------------------------------------------

    def _decide(
        self, choose: Callable[[Memory], tuple[Memory, Progress, Action]]
    ) -> tuple[Progress, Action]:
        """Let ``choose`` decide the next step, and store the changed knowledge of the servers."""
        decided: list[tuple[Progress, Action]] = []

        def change(memory: Memory) -> Memory:
            memory, progress, action = choose(memory)
            decided.append((progress, action))
            return memory

        self.view.update(change)
        return decided[-1]

    def _resumed(self, progress: Progress) -> tuple[Progress, Action]:
        policy = self.settings.policy
        return self._decide(lambda memory: failover.resume(policy, memory, progress, now()))

    def _after(self, progress: Progress, ended: _End[T]) -> tuple[Progress, Action]:
        policy, server, jitter = self.settings.policy, ended.server.index, random.random()
        return self._decide(
            lambda memory: failover.after(
                policy, memory, progress, server, ended.end, now(), jitter, _wait_s(ended)
            )
        )

    def _noted(self, progress: Progress, ended: _End[T]) -> Progress:
        policy, server = self.settings.policy, ended.server.index

        def choose(memory: Memory) -> tuple[Memory, Progress, Action]:
            noted = failover.noted(
                policy, memory, progress, server, ended.end, now(), _wait_s(ended)
            )
            return *noted, Done()

        return self._decide(choose)[0]


async def _one(work: Work[T], server: Server, deadline: float) -> _End[T]:
    try:
        return _End(server, await work.attempt(server, deadline))
    except WireError as error:
        failure = Failure(FailureKind.AVAILABILITY, str(error), retry_after_s=error.retry_after_s)
        return _End(server, None, error.end, failure)
    except Rejected as error:
        return _End(server, None, end_of(error.failure), error.failure)


def _wait_s(end: _End[T]) -> float:
    return end.failure.retry_after_s if end.failure is not None else 0.0


def _answered(end: _End[T]) -> bool:
    return end.end is AttemptEnd.ANSWERED


def _given_up(action: GiveUp, last: Failure, request_id: str) -> DatabaseError:
    unknown = action.outcome is Outcome.UNKNOWN
    because = f"; the last one answered: {last.message}" if last.message else ""
    failure = Failure(
        kind=FailureKind.AVAILABILITY,
        message=f"{action.reason.value}{because}",
        outcome=action.outcome,
        error_class=f"HACLIENT_{action.reason.name}",
        sqlstate=_SQLSTATES[action.reason],
        hint=(
            f"run it again with request_id={request_id!r} and age_s (the seconds since it was "
            "first sent): it is not applied twice"
            if unknown
            else last.hint or "nothing was done; try again once a server is available"
        ),
        cluster=last.cluster,
    )
    return error_from(failure, request_id)


def _cancelled(progress: Progress) -> Failure:
    return Failure(
        kind=FailureKind.AVAILABILITY,
        message="cancelled",
        outcome=Outcome.UNKNOWN if progress.in_doubt else Outcome.NOT_SENT,
        error_class="HACLIENT_CANCELLED",
        sqlstate="57014",
    )
