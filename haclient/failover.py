"""The choice of a server, and the end of attempts: the policy alone, as plain values.

A client has a list of servers in its order of preference. It stays with the *current* server
(sticky) until this server fails for availability or announces that it is leaving. Then the client
tries each of the other servers once: first those without a known fault, then those with an open
circuit (`haclient.choosing`), last those that are leaving. After a *round* without success, it
pauses (exponential backoff with jitter) and starts a new round, until the request's deadline passes
or no server has been available for ``outage_s``.

An answer, which is a result or an application error, ends the request; so does the second error
without an explanation. While the client is not with its first server, it probes the servers that it
prefers to the current one, and goes back to one that has been ready for ``failback_after_s``.

Two values: `Memory` is a connection's knowledge of its servers, shared by its requests; `Progress`
is the state of one request. Time (seconds on a monotonic clock) and randomness are arguments.
Invariants:

- No attempt starts at or after the deadline.
- Nothing is repeated after an answer.
- Every server is tried before the client gives up, unless the deadline passes.
- A request that is not repeatable (has no request id) is never sent again once a server may have
  seen it.
- A server that is leaving comes last until it has reported that it is ready.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from haclient.choosing import CLOSED, Breaker
from haclient.exceptions import Outcome

UNEXPLAINED_MAX = 2
"""If so many clusters fail with an unexplained error, the request itself is at fault.

Otherwise it would go to one cluster after another for ever, with the same effect.
"""
PATIENCE_PROBES_MAX = 20
"""How many probes hung servers can add to a client's patience; chosen."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of failover; chosen, not measured, unless stated."""

    connect_timeout_s: float = 0.5
    """A server that does not accept a connection within this time is skipped."""
    outage_s: float = 30.0
    """A request gives up when every server was unavailable for this long."""
    busy_s: float = 600.0
    """A request without a deadline gives up when every server was busy for this long."""
    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0
    circuit_s: float = 2.0
    """A server that failed is tried after the others for this time.

    For twice as long with each further failure in a row, up to ``circuit_max_s``.
    """
    circuit_max_s: float = 60.0
    """The longest time for which a server that failed is tried after the others."""
    failback_after_s: float = 10.0
    """The time that a preferred server must be ready before the client returns to it."""
    failback_probe_s: float = 1.0
    refresh_s: float = 10.0
    """What is known of the ring's servers is refreshed when it is older than this."""
    silence_s: float = 0.25
    """After this time without a byte of the answer the server is probed.

    Then again after each sign of life. While the server lives, the client waits for the answer.
    """
    probe_timeout_s: float = 0.25
    probes_missed: int = 2
    """After so many unanswered probes in a row a server counts as hung.

    With the values above that is after 0.75 s, so that the next server answers within a second.
    """
    probes_refused: int = 9
    """After so many refused probes in a row a server counts as hung.

    With the values above that is after 2.5 s: a HAProc that leaves service closes its door while it
    still finishes its requests.
    """

    @property
    def hung_after_s(self) -> float:
        """Return how long a request waits for a frozen server at most, before it goes on."""
        return self.silence_s + self.probes_missed * self.probe_timeout_s


class AttemptEnd(StrEnum):
    """How one attempt at one server ended."""

    ANSWERED = "answered"
    """The server sent a result, or an error that every server would send."""
    NOT_REACHED = "not reached"
    """There was no connection: the server cannot have received the request."""
    NOT_TAKEN = "not taken"
    """The server reports that it cannot run the request now, and has done nothing."""
    BUSY = "busy"
    """The server works at its limit, and has done nothing; it is asked again later."""
    LEAVING = "leaving"
    """The server is leaving service (it drains or stops), and has done nothing."""
    UNEXPLAINED = "unexplained"
    """The server's cluster answered with an error without an explanation; it still works."""
    IN_DOUBT = "in doubt"
    """The request may have been carried out.

    The connection broke, the server hung, or it reports that the outcome is unknown.
    """
    TIMED_OUT = "timed out"
    """The request's deadline passed; the server was alive but had not answered."""


class Reason(StrEnum):
    """The reason why a request was given up."""

    DEADLINE = "the deadline passed"
    """The request's ``timeout_s`` passed."""
    OUTAGE = "no server was available"
    """No server was available for ``outage_s``: see ``haproc status``."""
    BUSY = "every server was busy"
    """Every server was well, and busy for ``busy_s``, with a request that has no deadline (those of
    ``haclient.spark``)."""
    NOT_REPEATABLE = "it may have been carried out and has no request id to repeat it with"
    """It may have been carried out and has no request id: check before you repeat it."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a client knows of one server."""

    breaker: Breaker = CLOSED
    leaving: bool = False
    """True if it accepts no new requests, until it reports that it is ready."""
    ready_since: float | None = None
    """Since this time each probe has found it ready; None if the last one did not."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a connection knows of its servers; each server keeps its number."""

    current: int
    preferred: tuple[int, ...]
    """The numbers of the servers in use, in order of preference."""
    servers: tuple[ServerState, ...]

    @staticmethod
    def of(preferred: tuple[int, ...]) -> Memory:
        """Return the memory of a new connection, which has asked no server yet."""
        if not preferred:
            raise ValueError("at least one server is needed")
        return Memory(preferred[0], preferred, (ServerState(),) * (max(preferred) + 1))

    def with_server(self, server: int, state: ServerState) -> Memory:
        """Return the memory with ``state`` as the state of this server."""
        servers = (*self.servers[:server], state, *self.servers[server + 1 :])
        return replace(self, servers=servers)

    def place(self, server: int) -> int:
        """Return the server's place in the order of preference; a server not in use comes last."""
        return self.preferred.index(server) if server in self.preferred else len(self.preferred)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the attempts of one request have come."""

    deadline: float
    repeatable: bool
    untried: tuple[int, ...]
    """The servers that have not been tried in this round."""
    round: int = 0
    in_doubt: bool = False
    """True if a server may have carried out the request already."""
    outage_since: float | None = None
    busy_since: float | None = None
    unexplained: int = 0
    """How many clusters have answered with an unexplained error."""
    wait_s: float | None = None
    """The shortest pause that a busy server asked for in this round; None: none asked."""


@dataclass(frozen=True, slots=True)
class Try:
    """A decision: send the request to this server now."""

    server: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A decision: wait for ``seconds``, then call `resume`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A decision: raise an error with this outcome and this reason to the caller."""

    outcome: Outcome
    reason: Reason


@dataclass(frozen=True, slots=True)
class Done:
    """A decision: the last attempt's answer ends the request."""


Action = Try | Pause | GiveUp | Done


def rank(memory: Memory, server: int, now: float) -> tuple[bool, bool, bool, int]:
    """Return a sort key for a server: the current one first, failed ones late, leaving last."""
    known = memory.servers[server]
    return (
        known.leaving,
        known.breaker.is_open(now),
        server != memory.current,
        memory.place(server),
    )


def begin(
    policy: Policy,
    memory: Memory,
    now: float,
    timeout_s: float,
    repeatable: bool,
    in_doubt: bool = False,
) -> tuple[Memory, Progress, Action]:
    """Start a request; ``in_doubt``: it was sent before, so that it may have been carried out.

    Returns what is known, the request's progress, and the first decision.
    """
    progress = Progress(now + timeout_s, repeatable, memory.preferred, in_doubt=in_doubt)
    return _next(policy, memory, progress, now)


def after(
    policy: Policy,
    memory: Memory,
    progress: Progress,
    server: int,
    end: AttemptEnd,
    now: float,
    jitter: float,
    wait_s: float = 0.0,
) -> tuple[Memory, Progress, Action]:
    """Decide what to do after an attempt at ``server`` ended; ``jitter`` is random in [0, 1).

    ``wait_s``: the pause that a busy server asked for. Returns the new memory and progress, and the
    decision.
    """
    if end is AttemptEnd.ANSWERED:
        return _answered(memory, server), progress, Done()
    if end is AttemptEnd.TIMED_OUT:
        return memory, progress, GiveUp(Outcome.UNKNOWN, Reason.DEADLINE)
    memory, progress = noted(policy, memory, progress, server, end, now, wait_s)
    if end is AttemptEnd.UNEXPLAINED and progress.unexplained >= UNEXPLAINED_MAX:
        return memory, progress, Done()
    if progress.in_doubt and not progress.repeatable:
        return memory, progress, GiveUp(Outcome.UNKNOWN, Reason.NOT_REPEATABLE)
    if progress.untried:
        return _next(policy, memory, progress, now)
    return memory, *_pause(policy, progress, now, jitter)


def noted(
    policy: Policy,
    memory: Memory,
    progress: Progress,
    server: int,
    end: AttemptEnd,
    now: float,
    wait_s: float = 0.0,
) -> tuple[Memory, Progress]:
    """Note a failed attempt in the memory and the progress, without deciding what to do next.

    Used when a second server was asked at the same time and may still answer.
    """
    if end is AttemptEnd.TIMED_OUT:
        return memory, progress
    if end is AttemptEnd.UNEXPLAINED:  # this is not known to be the server's fault
        return memory, replace(progress, unexplained=progress.unexplained + 1)
    if end is AttemptEnd.BUSY:  # a busy server is no outage
        least_s = wait_s if progress.wait_s is None else min(progress.wait_s, wait_s)
        busy_since = now if progress.busy_since is None else progress.busy_since
        progress = replace(progress, outage_since=None, busy_since=busy_since, wait_s=least_s)
        return _well(memory, server), progress
    if end is AttemptEnd.LEAVING:
        memory = left(memory, server)
    else:
        memory = failed(policy, memory, server, now)
    since = now if progress.outage_since is None else progress.outage_since
    in_doubt = progress.in_doubt or end is AttemptEnd.IN_DOUBT
    return memory, replace(progress, in_doubt=in_doubt, outage_since=since)


def resume(
    policy: Policy, memory: Memory, progress: Progress, now: float
) -> tuple[Memory, Progress, Action]:
    """Start the next round over all servers, after a pause."""
    return _next(policy, memory, replace(progress, untried=memory.preferred, wait_s=None), now)


def second(memory: Memory, progress: Progress, now: float) -> int | None:
    """Return the best server to ask at the same time as the first one; None if there is none.

    It must be untried in this round and without a known fault.
    """
    for server in sorted(progress.untried, key=lambda each: rank(memory, each, now)):
        known = memory.servers[server]
        if not known.leaving and known.breaker == CLOSED:
            return server
    return None


def tried(progress: Progress, server: int) -> Progress:
    """Return the progress after this server was asked: it is not untried any more."""
    return replace(progress, untried=tuple(s for s in progress.untried if s != server))


def final_outcome(progress: Progress, reported: Outcome, log_offset: int | None) -> Outcome:
    """Return the outcome of a request that a server answered with an error.

    UNKNOWN if an earlier attempt may have been carried out, unless the answer comes from the
    request's own record in the log (then it has a log offset).
    """
    return Outcome.UNKNOWN if progress.in_doubt and log_offset is None else reported


def _next(
    policy: Policy, memory: Memory, progress: Progress, now: float
) -> tuple[Memory, Progress, Action]:
    if now >= progress.deadline:
        return memory, progress, GiveUp(_outcome(progress), Reason.DEADLINE)
    # Chosen only now, because other requests may have met failures meanwhile.
    server = min(progress.untried, key=lambda each: rank(memory, each, now))
    known = memory.servers[server]
    breaker = known.breaker.tried(policy.circuit_s, policy.circuit_max_s, now)
    if breaker is not known.breaker:
        memory = memory.with_server(server, replace(known, breaker=breaker))
    return memory, tried(progress, server), Try(server)


def failed(policy: Policy, memory: Memory, server: int, now: float) -> Memory:
    """Return the memory after a server failed, in an attempt or in the middle of its answer."""
    known = memory.servers[server]
    breaker = known.breaker.failed(policy.circuit_s, policy.circuit_max_s, now)
    return memory.with_server(server, replace(known, breaker=breaker, ready_since=None))


def _pause(
    policy: Policy, progress: Progress, now: float, jitter: float
) -> tuple[Progress, Action]:
    # The exponent is bounded so that a long outage cannot overflow a float.
    full = min(policy.backoff_max_s, policy.backoff_first_s * 2.0 ** min(progress.round, 30))
    server_pause_s = progress.wait_s or 0.0
    seconds = max(full * (0.5 + jitter / 2), server_pause_s * (1.0 + jitter / 2))
    progress = replace(progress, round=progress.round + 1)
    if now + seconds >= progress.deadline:
        return progress, GiveUp(_outcome(progress), Reason.DEADLINE)
    since = progress.outage_since
    if since is not None and now + seconds - since > policy.outage_s:
        return progress, GiveUp(_outcome(progress), Reason.OUTAGE)
    since = progress.busy_since
    if (
        since is not None
        and progress.deadline == math.inf
        and now + seconds - since > policy.busy_s
    ):
        return progress, GiveUp(_outcome(progress), Reason.BUSY)
    return progress, Pause(seconds)


def _outcome(progress: Progress) -> Outcome:
    return Outcome.UNKNOWN if progress.in_doubt else Outcome.NOT_SENT


def _well(memory: Memory, server: int) -> Memory:
    known = memory.servers[server]
    if known.breaker == CLOSED:
        return memory
    return memory.with_server(server, replace(known, breaker=CLOSED))


def _answered(memory: Memory, server: int) -> Memory:
    known = memory.servers[server]
    memory = _well(memory, server)
    current = memory.servers[memory.current]
    lost = current.leaving or current.breaker != CLOSED or memory.current not in memory.preferred
    moved = lost and not known.leaving
    return replace(memory, current=server) if moved else memory


def left(memory: Memory, server: int) -> Memory:
    """Return the memory after a server reported that it is leaving service."""
    known = memory.servers[server]
    return memory.with_server(server, replace(known, leaving=True, ready_since=None))


def prefer(memory: Memory, preferred: tuple[int, ...]) -> Memory:
    """Return the memory with these servers in use, best first.

    The current server stays the same if it is among them.
    """
    new = (ServerState(),) * (max(preferred) + 1 - len(memory.servers))
    current = memory.current if memory.current in preferred else preferred[0]
    return Memory(current, preferred, memory.servers + new)


def to_probe(memory: Memory) -> tuple[int, ...]:
    """Return the servers to probe: those preferred to the current one, and leaving ones."""
    better = memory.preferred[: memory.place(memory.current)]
    return tuple(s for s in memory.preferred if s in better or memory.servers[s].leaving)


def probed(
    policy: Policy, memory: Memory, server: int, ready: bool, now: float, stays: bool = False
) -> Memory:
    """Return the memory after a probe; perhaps go back to a preferred server, as `back` does.

    ``stays``: the client must not change its server now.
    """
    known = memory.servers[server]
    if not ready:
        return memory.with_server(server, replace(known, ready_since=None))
    since = now if known.ready_since is None else known.ready_since
    memory = memory.with_server(server, replace(known, leaving=False, ready_since=since))
    return memory if stays else back(policy, memory, now)


def back(policy: Policy, memory: Memory, now: float) -> Memory:
    """Go back to the best server before the current one in the order that was ready long enough."""
    for server in memory.preferred[: memory.place(memory.current)]:
        since = memory.servers[server].ready_since
        if since is not None and now - since >= policy.failback_after_s:
            return replace(memory.with_server(server, ServerState()), current=server)
    return memory


class Pulse(StrEnum):
    """What a probe of a server's liveness found."""

    ALIVE = "alive"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The counts of failed probes in a row of a server that has sent nothing for ``silence_s``.

    ``silent``: probes without an answer; ``refused``: probes without a connection.
    """

    silent: int = 0
    refused: int = 0

    def after(self, pulse: Pulse) -> Liveness:
        """Return the counts after one more probe."""
        if pulse is Pulse.ALIVE:
            return Liveness()
        if pulse is Pulse.REFUSED:
            return Liveness(0, self.refused + 1)
        return Liveness(self.silent + 1, self.refused)

    def hung(self, policy: Policy, hung_before: int = 0) -> bool:
        """True if the server counts as hung, so that the request must stop waiting for it.

        ``hung_before``: the attempts in a row that had ended at hung servers when the present one
        began. If server after server seems to be hung, the machine or the network is slow. Each
        attempt that ended as hung adds a probe, up to a limit, so that the request finally waits
        long enough.
        """
        missed = policy.probes_missed + min(hung_before, PATIENCE_PROBES_MAX)
        return self.silent >= missed or self.refused >= policy.probes_refused
