"""The states of a HAProc, the messages in which it reports them, and the check before a drain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

# The states of a HAProc, derived from the known facts.
#
# A state is never stored: `state_of` computes it from a `Condition`. So no sequence of events can
# leave a wrong state.


class State(StrEnum):
    """The state of a HAProc, which decides what it may do; `state_of` tests them in this order."""

    STOPPED = "STOPPED"
    FENCED = "FENCED"
    """Another incarnation has taken over this cluster."""
    REMOVED = "REMOVED"
    """The ring does not have this cluster any more."""
    TOO_FAR_BEHIND = "TOO_FAR_BEHIND"
    """The log no longer holds the records that this cluster missed."""
    DIVERGED = "DIVERGED"
    """This cluster's tables differ from the others'."""
    STUCK = "STUCK"
    """One operation keeps failing here because of the environment; HAProc still tries it."""
    DRAINING = "DRAINING"
    """The HAProc finishes accepted requests and refuses new ones."""
    COPYING = "COPYING"
    """The cluster takes its tables from another one."""
    STARTING = "STARTING"
    DOWN = "DOWN"
    """The cluster does not answer."""
    ISOLATED = "ISOLATED"
    """This HAProc cannot reach the log, and either a peer can, or it cannot reach any peer."""
    RECOVERING = "RECOVERING"
    """The cluster applies the records that it missed."""
    READ_ONLY = "READ_ONLY"
    """The log seems to be away; queries are answered, writes are refused."""
    READY = "READY"


SERVING: Final = frozenset({State.READY, State.READ_ONLY})
"""States in which new requests of clients are accepted."""

ANSWERING: Final = SERVING | {State.DRAINING}
"""States in which the client door is open. While draining, it finishes accepted requests, and
refuses new ones with an error that names the state."""

HOPELESS: Final = frozenset({State.FENCED, State.REMOVED, State.TOO_FAR_BEHIND, State.DIVERGED})
"""States that waiting does not end: an operator must act."""

PROGRESSING: Final = frozenset({State.READY, State.READ_ONLY, State.RECOVERING, State.STARTING})
"""States in which a HAProc runs the operations that it put into the log, now or soon, without
help."""


class Cause(StrEnum):
    """Why a cluster is DIVERGED, or why clusters differ without a proof (`Undecided`)."""

    OUTCOME = "outcome"
    """An operation had another outcome here than on the other clusters."""
    SKIPPED = "skipped"
    """An operator had this cluster skip an operation."""
    GIVEN_UP = "given up"
    """The cluster has applied an operation that the ring gave up (rejected for all clusters)."""
    TABLES = "tables"
    """A verification found that tables differ, or a commit was made past HAProc."""
    REPAIR = "repair"
    """A copy of tables from another cluster failed, so they may be incomplete."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a cluster differs from the others; stored with the cursor until a verification ends it.

    ``offset``: of the newest operation or verification that shows it. ``applies``: True if the
    cluster goes on applying. A wrong outcome stops it, so that its tables can be examined as they
    were. A failed copy stops it, because tables may be missing. After a skipped operation or a
    failed verification it goes on, until it is repaired and verified again.
    """

    offset: int
    cause: Cause
    applies: bool = False
    tables: str = ""
    """The tables' names as text, for Cause.TABLES and Cause.REPAIR."""

    def joined(self, earlier: Divergence | None) -> Divergence:
        """Return one divergence for this and ``earlier``: the newer one, but REPAIR stays."""
        if earlier is None:
            return self
        half_made = [each for each in (self, earlier) if each.cause is Cause.REPAIR]
        if half_made:  # only a rebuild ends it
            return half_made[0]
        newest = self if self.offset >= earlier.offset else earlier
        return replace(newest, applies=self.applies or earlier.applies)


@dataclass(frozen=True, slots=True)
class Undecided:
    """A difference between clusters while nothing proves which of them is wrong: all serve on.

    It is stored with the cursor until a verification finds this cluster equal to the others, or
    different. ``offset``: of the operation or the verification. ``cause``: OUTCOME or TABLES.
    ``what``: the outcome or tables of each cluster, for people.
    """

    offset: int
    cause: Cause
    what: str

    def __str__(self) -> str:
        """Return the difference as text for people, with the command that helps."""
        if self.cause is Cause.TABLES:
            return (
                f"clusters' tables differ at offset {self.offset} ({self.what}), and no majority "
                "shows which are right: see haproc verify, then haproc verify --trust NAME"
            )
        return (
            f"clusters differ about the operation at offset {self.offset} ({self.what}), and no "
            "majority shows which is right: run haproc verify"
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """The known facts about one HAProc, from which its state follows; ``stuck_at`` is an offset."""

    started: bool = False
    cluster_up: bool = False
    log_up: bool = True
    caught_up: bool = False
    draining: bool = False
    """The process is to end after its running requests."""
    drained: bool = False
    """An operator has drained this cluster."""
    stopped: bool = False
    fenced_by: str | None = None
    removed: str = ""
    """The text for people that says that the ring removed this cluster; empty: it did not."""
    stuck_at: int | None = None
    diverged: Divergence | None = None
    isolated: str = ""
    """Why this HAProc is cut off from the ring, for people; empty: it is not."""
    undecided: Undecided | None = None
    behind: str = ""
    """Why this cluster is TOO_FAR_BEHIND, with what helps, for people; empty: it is not."""
    copying: str = ""
    """How far the copy of another cluster's tables is, for people; empty: there is none."""
    cluster_error: str = ""
    log_error: str = ""


def state_of(condition: Condition) -> tuple[State, str]:
    """Return the state, and its reason with what helps, for people; the reason may be empty."""
    c = condition
    if c.stopped:
        return State.STOPPED, ""
    if c.fenced_by is not None:
        return State.FENCED, (
            f"another process has taken over this cluster ({c.fenced_by}); stop this one"
        )
    if c.removed:
        return State.REMOVED, (
            f"{c.removed}; nothing more is applied: stop this HAProc, or take the cluster back "
            "with haproc cluster add"
        )
    if c.behind:
        return State.TOO_FAR_BEHIND, c.behind
    if c.diverged is not None:
        return State.DIVERGED, _differs(c.diverged) + _stuck(c)
    if c.stuck_at is not None and c.cluster_up:
        return State.STUCK, _stuck(c).removeprefix("; ")
    if c.draining:
        return State.DRAINING, "stopping"
    if c.drained:
        return State.DRAINING, _drained(c)
    if c.copying:
        return State.COPYING, c.copying
    if not c.started:
        return State.STARTING, c.cluster_error
    if not c.cluster_up:
        return State.DOWN, c.cluster_error
    if c.isolated:
        return State.ISOLATED, f"{c.isolated}: mend the network; it returns by itself"
    if not c.caught_up:
        return State.RECOVERING, c.log_error
    if not c.log_up:
        return State.READ_ONLY, c.log_error
    if c.undecided is not None:
        return State.READY, str(c.undecided)
    return State.READY, ""


def beneath(condition: Condition) -> State:
    """Return the state that the HAProc would have if it were not drained or stopping."""
    return state_of(replace(condition, draining=False, drained=False))[0]


def _drained(c: Condition) -> str:
    state, why = state_of(replace(c, drained=False))
    return (
        "drained by an operator, until haproc undrain; without that it would be "
        f"{state.value}" + (f": {why}" if why else "")
    )


def _differs(divergence: Divergence) -> str:
    offset = divergence.offset
    match divergence.cause:
        case Cause.SKIPPED:
            what = f"the operation at offset {offset} was skipped here: mend what it wrote"
        case Cause.GIVEN_UP:
            what = (
                f"the operation at offset {offset} was applied here, and the ring has rejected it: "
                "undo what it wrote"
            )
        case Cause.TABLES:
            what = (
                f"at offset {offset} tables differ from the other clusters' "
                f"({divergence.tables}): mend them"
            )
        case Cause.REPAIR:
            return (
                f"tables ({divergence.tables}) were to be copied at offset {offset}, which failed "
                "(see the log); nothing more is applied: run haproc cluster rebuild"
            )
        case Cause.OUTCOME:
            what = f"the operation at offset {offset} had another outcome here than on the others"
            if not divergence.applies:
                return what + (
                    "; nothing more is applied: mend the tables it wrote and run haproc queue "
                    "skip, or rebuild this cluster"
                )
            what += ": mend what it wrote"
    return what + ", then run haproc verify"


def _stuck(c: Condition) -> str:
    if c.stuck_at is None:
        return ""
    return (
        f"; the operation at offset {c.stuck_at} keeps failing here ({c.cluster_error}); it is "
        "tried again; see haproc queue show"
    )


# The messages that HAProcs send each other unasked: heartbeats and progress.


Identifier: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]+\Z", max_length=128)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat that the HAProc of ``cluster`` sends to its peers.

    ``hears``: the peers whose heartbeats the sender receives. ``log_up``: True if the log answered
    the sender a moment ago. ``epoch``: one more than the log offset of the sender's claim; 0 before
    it has one.
    """

    cluster: str
    incarnation: Identifier
    epoch: Offset
    hears: tuple[str, ...]
    log_up: bool
    state: State


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A report of state and progress that a HAProc sends to its peers.

    ``since``: the time at which the state began, as text (ISO 8601). ``lag``: the number of records
    below ``log_end`` that the cluster has not applied.
    """

    cluster: str
    incarnation: Identifier
    epoch: Offset
    state: State
    since: Identifier
    cursor: Offset
    log_end: Offset
    lag: Offset

    def lag_at(self, end: int) -> int:
        """Return the cluster's lag if the log now ends at ``end`` and nothing was applied since."""
        return max(0, self.lag + end - self.log_end)


PeerMessage: TypeAlias = Beat | ClusterReport
"""What a HAProc sends to its peers about itself, as JSON; fields that a reader does not know are
ignored."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a HAProc reports about itself; the fields are as in `Beat` and `ClusterReport`.

    ``log_lost``: the log has not answered for so long that a peer must have noticed it, too, if the
    log itself is away.
    """

    state: State
    since: str
    epoch: int = 0
    cursor: int = 0
    log_end: int = 0
    lag: int = 0
    log_up: bool = False
    log_lost: bool = False


def time_text(at: datetime) -> str:
    """Return a time (UTC) as ISO 8601 text with milliseconds and ``Z``."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# The check before an operator drains a cluster. Values in, decision out.
#
# The last cluster that serves is refused, unless forced. The others' states are those of their last
# heartbeat, so two drains at the same moment can both be allowed: drain one cluster after another.


def refusal(me: str, own: State, others: Mapping[str, str], *, force: bool) -> str:
    """Return why the cluster ``me`` must not be drained now, for people; empty: it may be.

    ``own``: its state. ``others``: the states of the ring's other clusters by name; empty for one
    that is down. ``force``: it may be drained in any case.
    """
    if force or own not in SERVING or any(state in SERVING for state in others.values()):
        return ""
    if not others:
        return f"the ring has no cluster but {me}"
    states = ", ".join(f"{name} is {state or 'down'}" for name, state in others.items())
    return f"no other cluster serves clients ({states})"
