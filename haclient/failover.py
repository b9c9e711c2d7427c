"""Which server to ask, and when to stop: the policy alone, as plain values.

A client has an ordered list of servers. It stays with the *current* one (sticky) until that one
fails for availability; then it asks the others at once, each once, those that failed lately last.
Only after such a *round* has failed wholly does it pause (exponential backoff with jitter) and
start a new round, until the request's deadline passes or nobody has been available for
``outage_s``. An answer, be it a result or an application error, ends the request. While it is not
with the first server, the client probes that one and goes back once it has been ready for
``failback_after_s``.

Two values: `Memory` is what a connection knows of its servers, shared by its requests;
`Progress` is one request's own. Time (seconds on a monotonic clock) and randomness are arguments.
Invariants: no attempt starts at or after the deadline; nothing is repeated after an answer; every
server is asked before giving up, unless the deadline passes; a request that is not repeatable
(carries no request id) is never sent again once a server may have seen it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from haclient.exceptions import Outcome


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings; chosen, not measured, unless it says so."""

    connect_timeout_s: float = 0.5
    """A server that does not take a connection within this is passed over."""
    outage_s: float = 30.0
    """Give up when for so long every server was unavailable."""
    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0
    circuit_s: float = 10.0
    """A server that failed within this is asked after those that did not."""
    failback_after_s: float = 10.0
    """How long the first server must have been ready before the client returns to it."""
    failback_probe_s: float = 1.0
    silence_s: float = 0.5
    """After this long without a byte of the answer the server's liveness is probed."""
    probe_timeout_s: float = 0.4
    probes_missed: int = 2
    """Unanswered probes in a row that make a server hung: with the above, after 1.3 s."""
    probes_refused: int = 4
    """Refused probes in a row that make it so, after 2.5 s: a draining server's door is closed
    while it still finishes what it has under way."""


class AttemptEnd(StrEnum):
    """How one attempt at one server ended."""

    ANSWERED = "answered"
    """With a result, or an error that every server would give."""
    NOT_REACHED = "not reached"
    """No connection: the server cannot have seen the request."""
    NOT_TAKEN = "not taken"
    """The server says that it cannot now, and that it has done nothing."""
    IN_DOUBT = "in doubt"
    """The connection broke, the server hung, or it says that it does not know."""
    TIMED_OUT = "timed out"
    """The request's deadline passed while the server was alive and silent."""


class Reason(StrEnum):
    """Why a request was given up."""

    DEADLINE = "the deadline passed"
    OUTAGE = "no server was available"
    NOT_REPEATABLE = "it may have been carried out and has no request id to repeat it with"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a connection knows of its servers, by their place in the list."""

    current: int
    failed_at: tuple[float | None, ...]
    """When each server last failed; None since it last answered."""
    first_ready_since: float | None = None

    @staticmethod
    def of(server_count: int) -> Memory:
        """Return the memory of a connection that has asked nobody yet."""
        if server_count < 1:
            raise ValueError("at least one server is needed")
        return Memory(0, (None,) * server_count)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one request has got."""

    deadline: float
    repeatable: bool
    untried: tuple[int, ...]
    """The servers left in this round, best first."""
    round: int = 0
    in_doubt: bool = False
    """A server may have carried it out."""
    outage_since: float | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """Send the request to this server now."""

    server: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, then ask `resume`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell the caller."""

    outcome: Outcome
    reason: Reason


@dataclass(frozen=True, slots=True)
class Done:
    """The answer stands."""


Action = Try | Pause | GiveUp | Done


def order(policy: Policy, memory: Memory, now: float) -> tuple[int, ...]:
    """Return all servers in the order to ask them: the current one, then as listed.

    Those that failed within ``circuit_s`` come last.
    """

    def rank(server: int) -> tuple[bool, bool, int]:
        failed = memory.failed_at[server]
        lately = failed is not None and now - failed < policy.circuit_s
        return (lately, server != memory.current, server)

    return tuple(sorted(range(len(memory.failed_at)), key=rank))


def begin(
    policy: Policy, memory: Memory, now: float, timeout_s: float, repeatable: bool
) -> tuple[Progress, Action]:
    """Start a request."""
    progress = Progress(now + timeout_s, repeatable, order(policy, memory, now))
    return _next(progress, now)


def after(
    policy: Policy,
    memory: Memory,
    progress: Progress,
    server: int,
    end: AttemptEnd,
    now: float,
    jitter: float,
) -> tuple[Memory, Progress, Action]:
    """Take an attempt's end into account; ``jitter`` is random in [0, 1)."""
    if end is AttemptEnd.ANSWERED:
        return _answered(memory, server), progress, Done()
    if end is AttemptEnd.TIMED_OUT:
        return memory, progress, GiveUp(Outcome.UNKNOWN, Reason.DEADLINE)
    failed = (*memory.failed_at[:server], now, *memory.failed_at[server + 1 :])
    since = None if server == 0 else memory.first_ready_since
    memory = replace(memory, failed_at=failed, first_ready_since=since)
    progress = replace(
        progress,
        in_doubt=progress.in_doubt or end is AttemptEnd.IN_DOUBT,
        outage_since=now if progress.outage_since is None else progress.outage_since,
    )
    if progress.in_doubt and not progress.repeatable:
        return memory, progress, GiveUp(Outcome.UNKNOWN, Reason.NOT_REPEATABLE)
    if progress.untried:
        return memory, *_next(progress, now)
    return memory, *_pause(policy, progress, now, jitter)


def resume(
    policy: Policy, memory: Memory, progress: Progress, now: float
) -> tuple[Progress, Action]:
    """Start the next round after a pause."""
    return _next(replace(progress, untried=order(policy, memory, now)), now)


def final_outcome(progress: Progress, told: Outcome, log_offset: int | None) -> Outcome:
    """Return the outcome of a request that was answered with an error.

    If an earlier attempt is in doubt, only an answer that comes from the request's own record in
    the log (it has an offset) settles what became of it.
    """
    return Outcome.UNKNOWN if progress.in_doubt and log_offset is None else told


def _next(progress: Progress, now: float) -> tuple[Progress, Action]:
    if now >= progress.deadline:
        return progress, GiveUp(_outcome(progress), Reason.DEADLINE)
    return replace(progress, untried=progress.untried[1:]), Try(progress.untried[0])


def _pause(
    policy: Policy, progress: Progress, now: float, jitter: float
) -> tuple[Progress, Action]:
    # The exponent is bounded so that a long outage cannot overflow a float.
    full = min(policy.backoff_max_s, policy.backoff_first_s * 2.0 ** min(progress.round, 30))
    seconds = full * (0.5 + jitter / 2)
    progress = replace(progress, round=progress.round + 1)
    if now + seconds >= progress.deadline:
        return progress, GiveUp(_outcome(progress), Reason.DEADLINE)
    since = now if progress.outage_since is None else progress.outage_since
    if now + seconds - since > policy.outage_s:
        return progress, GiveUp(_outcome(progress), Reason.OUTAGE)
    return progress, Pause(seconds)


def _outcome(progress: Progress) -> Outcome:
    return Outcome.UNKNOWN if progress.in_doubt else Outcome.NOT_SENT


def _answered(memory: Memory, server: int) -> Memory:
    if memory.failed_at[server] is None and memory.current == server:
        return memory
    moved = memory.failed_at[memory.current] is not None
    failed = (*memory.failed_at[:server], None, *memory.failed_at[server + 1 :])
    return replace(memory, current=server if moved else memory.current, failed_at=failed)


def probed(policy: Policy, memory: Memory, ready: bool, now: float) -> Memory:
    """Take into account what the first server said about its readiness; maybe go back to it."""
    if not ready:
        return replace(memory, first_ready_since=None)
    if memory.first_ready_since is None:
        return replace(memory, first_ready_since=now)
    if now - memory.first_ready_since < policy.failback_after_s:
        return memory
    return Memory(0, (None, *memory.failed_at[1:]))


class Pulse(StrEnum):
    """What a liveness probe found."""

    ALIVE = "alive"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Liveness:
    """Judges a server that has not answered for ``silence_s``, probe by probe."""

    silent: int = 0
    refused: int = 0

    def after(self, pulse: Pulse) -> Liveness:
        """Return the judgement with one more probe."""
        if pulse is Pulse.ALIVE:
            return Liveness()
        if pulse is Pulse.REFUSED:
            return Liveness(0, self.refused + 1)
        return Liveness(self.silent + 1, self.refused)

    def hung(self, policy: Policy) -> bool:
        """Whether to stop waiting for the answer."""
        return self.silent >= policy.probes_missed or self.refused >= policy.probes_refused
