"""The clusters of a ring: the addresses of their HAProcs, and the requests between HAProcs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from haproc.config.model import Address, Config
from haproc.engine.copies import Inventory
from haproc.membership.state import HOPELESS, Offset, Seconds, State, Undecided

# The clusters of a ring, and the addresses of their HAProcs. Values only.
#
# Until the log has a record about them, a ring's members are those of the configuration. After the
# first record about them (`replicate.records.members`) the log decides, for every HAProc, whatever
# its own file names.
#
# The file's address of a cluster comes first, so a cluster can be moved by changing the files. The
# address of a cluster that was added after a HAProc started comes from the log.


@dataclass(frozen=True, slots=True)
class Member:
    """One cluster of the ring: the operator door of its HAProc, and the URL for clients."""

    name: str
    peer: Address
    client_url: str


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The ring's members according to the newest ``members`` record, which is at ``offset``.

    -1: the log has no such record, so the configuration names the members. ``members`` is None if
    the record at ``offset`` was trimmed away: then the log holds a newer one, which is not read
    yet.
    """

    offset: int = -1
    members: tuple[Member, ...] | None = None

    @property
    def names(self) -> frozenset[str] | None:
        """The members' names; None if they are not known from the log."""
        return None if self.members is None else frozenset(each.name for each in self.members)


def founders(config: Config) -> tuple[Member, ...]:
    """Return the clusters that the configuration names, in ring order."""
    return tuple(Member(c.name, c.peer, config.client_url(c.name)) for c in config.clusters)


def with_own_addresses(members: Iterable[Member], known: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members; the address of each is that in ``known``, if it is named there."""
    by_name = {each.name: each for each in known}
    return tuple(by_name.get(member.name, member) for member in members)


def disagreement(configured: Iterable[str], enrolled: Enrolled) -> str:
    """Return how the configured clusters differ from the log's members, for people.

    Empty: they do not differ.
    """
    if enrolled.names is None:
        return ""
    mine = frozenset(configured)
    missing, extra = sorted(enrolled.names - mine), sorted(mine - enrolled.names)
    if not missing and not extra:
        return ""
    parts = [f"does not name {', '.join(missing)}"] if missing else []
    parts += [f"names {', '.join(extra)}, which left"] if extra else []
    return (
        f"the configuration {' and '.join(parts)}: the ring's members are "
        f"{', '.join(sorted(enrolled.names))} since offset {enrolled.offset}; bring the file up "
        "to date"
    )


# Requests between HAProcs.


class PeerUnavailableError(Exception):
    """A peer could not be asked, or gave no proper answer in time."""


class PeerBusyError(PeerUnavailableError):
    """A peer is healthy, but accepts no more requests now."""


# The answers of HAProcs to each other, as JSON. Readers ignore fields that they do not know.


@dataclass(frozen=True, slots=True)
class ApplyNow:
    """A request to a peer: run this synchronous operation now, before the log has its decision."""

    offset: Offset
    operation_id: str
    timeout_s: Seconds


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """The outcome of an operation on a peer's cluster.

    ``status``: an `OutcomeStatus`, or a word that says that there is none yet. ``assumed``: the
    operation is known to be over, but its exact outcome was not seen.
    """

    status: str
    assumed: bool = False
    error_class: str = ""
    sqlstate: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """What a peer has applied: all operations below ``known_to`` except ``unfinished``.

    ``seen``: identifies this answer, for the next request.
    """

    seen: str
    state: State
    known_to: int
    unfinished: frozenset[int]

    @property
    def sound(self) -> bool:
        """True if the peer's tables are those at its cursor: its state needs no operator."""
        return self.state not in HOPELESS

    def applied(self, offset: int) -> bool:
        """True if the peer has applied the operation at ``offset``."""
        return offset < self.known_to and offset not in self.unfinished


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The progress of a copy after ``seconds``: tables and bytes, in all and done so far.

    ``marker``: the offset of the copy's record.
    """

    donor: str
    marker: int
    tables: int
    tables_done: int
    bytes: int
    bytes_done: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """The newest copy that failed in this process: the offset of its record, and the reason."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A HAProc's state, cursor, lag and other facts.

    ``computing``: the offsets of the operations whose rows it is computing now.
    """

    cluster: str
    state: State
    reason: str
    drained: bool
    undecided: Undecided | None
    incarnation: str
    cursor: int
    log_end: int
    lag: int
    applying: bool
    computing: tuple[int, ...]
    copy: CopyStatus | None = None
    copy_failed: CopyFailure | None = None
    foreign: Mapping[str, Any] = field(default_factory=dict)
    """Commits that were made past HAProc, see `replicate.agree.foreign_watch`."""


@dataclass(frozen=True, slots=True)
class CopyQuestion:
    """A request of a copying cluster to its donor, see `replicate.agree.donating`.

    ``do``: what the donor should do. ``marker``: the offset of the copy's record. ``note``: the id
    of the donor's snapshot. ``table``: the table's number in the snapshot's inventory. ``after``:
    the path of the last known file. ``path``, ``offset``, ``length``: a part of a file.
    """

    do: str
    marker: int
    note: str = ""
    table: int = 0
    after: str = ""
    path: str = ""
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """A donor's answer to a `CopyQuestion`; bytes of a file are sent behind it.

    ``state``: ``ok``; ``pending``: there is no snapshot yet; ``gone``: the snapshot is gone;
    ``failed``: the donor's Spark failed, and if ``final``, a repetition would fail, too. ``note``:
    the snapshot's id. ``size``: the file's.
    """

    state: str
    note: str = ""
    message: str = ""
    error_class: str = ""
    final: bool = False
    inventory: Inventory | None = None
    claims: tuple[tuple[str, int], ...] = ()
    roster: int = -1
    lineage: tuple[tuple[str, int], ...] = ()
    actions: tuple[Any, ...] = ()
    files: tuple[Any, ...] = ()
    size: int = 0


class Peers(Protocol):
    """Sends requests to the other HAProcs of the ring; each is named by its cluster.

    Every request may raise PeerUnavailableError.
    """

    def is_gone(self, peer: str) -> bool:
        """True if a peer has been silent for so long that a request to it is useless."""
        ...

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> PeerOutcome:
        """Ask a peer to run a synchronous operation before its decision; return its outcome."""
        ...

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> PeerOutcome:
        """Return the outcome of the operation at ``offset`` on a peer's cluster, if any yet."""
        ...

    async def progress(self, peer: str, seen: str, timeout_s: float) -> PeerProgress:
        """Return a peer's progress once it differs from ``seen``, or after ``timeout_s``.

        ``seen``: the field of that name of an earlier answer; empty: answer at once.
        """
        ...

    async def copy(
        self, peer: str, question: CopyQuestion, timeout_s: float
    ) -> tuple[CopyAnswer, bytes]:
        """Send a copy's question to its donor.

        Returns the answer, and bytes of a file if the question asks for some.
        """
        ...

    async def status(self, peer: str, timeout_s: float) -> PeerStatus:
        """Return a peer's state, cursor, lag and other facts."""
        ...
