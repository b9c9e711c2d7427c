"""The clusters of a ring: where their HAProcs are, and what HAProcs ask of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from haproc.config.model import Address, Config
from haproc.engine.copies import Inventory
from haproc.membership.state import HOPELESS, Offset, Seconds, State, Undecided

# Which clusters a ring has, and where their HAProcs are. Values only.
#
# Until the log has a record about them, a ring's members are those of the configuration. The first
# record about them (`replicate.records.members`) makes the log decide, for every HAProc, whatever
# its own file names.
#
# Addresses are the file's where it names a cluster, so that one can be moved by changing the
# files; those of a cluster that was added since a HAProc started come from the log.


class Neighbour(Protocol):
    """The facts about a cluster that its peers need."""

    @property
    def name(self) -> str: ...
    @property
    def peer(self) -> Address: ...
    @property
    def client_url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One cluster of the ring: the operator door of its HAProc, and the URL for clients."""

    name: str
    peer: Address
    client_url: str


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The members according to the log, by the record at ``offset``.

    -1: the log has none, and the configuration counts. ``members`` is None where the record was
    trimmed away: then a newer one stands farther on.
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


def with_own_addresses(
    members: Iterable[Member], known: Iterable[Neighbour]
) -> tuple[Neighbour, ...]:
    """Return the members, each with the address that is known of it here, if one is."""
    by_name = {each.name: each for each in known}
    return tuple(by_name.get(member.name, member) for member in members)


def disagreement(configured: Iterable[str], enrolled: Enrolled) -> str:
    """Return the differences of a configuration from the log, for people; may be empty."""
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


# What HAProcs ask of each other.


class PeerUnavailableError(Exception):
    """A peer could not be asked, or did not answer in time."""


class PeerBusyError(PeerUnavailableError):
    """A peer is well, and has as much to do as it takes."""


# What HAProcs answer each other, as JSON. Readers ignore fields that they do not know.


@dataclass(frozen=True, slots=True)
class ApplyNow:
    """A peer is to run this synchronous operation before it is decided."""

    offset: Offset
    operation_id: str
    timeout_s: Seconds


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """The outcome of an operation on a cluster.

    ``status``: a status of outcomes, or that there is none yet. ``assumed``: it may change.
    """

    status: str
    assumed: bool = False
    error_class: str = ""
    sqlstate: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """The operations that a peer has applied: all below ``known_to`` except ``unfinished``."""

    seen: str
    state: State
    known_to: int
    unfinished: frozenset[int]

    @property
    def sound(self) -> bool:
        """True if the tables are those at the cursor: no state that only an operator ends."""
        return self.state not in HOPELESS

    def applied(self, offset: int) -> bool:
        """Return whether it has applied this operation."""
        return offset < self.known_to and offset not in self.unfinished


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The progress of a copy in tables and bytes, after so many seconds."""

    donor: str
    marker: int
    tables: int
    tables_done: int
    bytes: int
    bytes_done: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """The reason why tables were not copied at an offset: the newest since the process began."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A HAProc's state, cursor and lag. ``computing``: the operations whose rows it is at."""

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
    """Commits that the ring did not make, see `replicate.agree.foreign_watch`."""


@dataclass(frozen=True, slots=True)
class CopyQuestion:
    """A request of a copy to its donor, see `replicate.agree.donating`. ``marker``: its record's
    offset.

    ``note``: the id of the notes that the other fields refer to. ``table``: its number in the
    inventory; ``after``: the last path known; ``path``, ``offset``, ``length``: a part of a file.
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
    """A donor's answer; bytes of a file stand beside it.

    ``state``: ``ok``; ``pending``: there are no notes yet; ``gone``: they are not there any more;
    ``failed``: its Spark failed, ``final``: and will again. ``note``: the notes' id. ``size``: of
    the file.
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
    """The other HAProcs of the ring, by cluster name.

    Every question may raise PeerUnavailableError.
    """

    def given_up(self, peer: str) -> bool:
        """Return whether a peer has been silent for so long that a request to it is useless."""
        ...

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> PeerOutcome:
        """Ask a peer to run a synchronous operation before it is decided; returns its outcome."""
        ...

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> PeerOutcome:
        """Ask what became of an operation on a peer's cluster."""
        ...

    async def progress(self, peer: str, seen: str, timeout_s: float) -> PeerProgress:
        """Return what a peer has applied, once that differs from what was ``seen``."""
        ...

    async def copy(
        self, peer: str, question: CopyQuestion, timeout_s: float
    ) -> tuple[CopyAnswer, bytes]:
        """Ask a peer for what a copy of its cluster needs; returns bytes of a file, too."""
        ...

    async def status(self, peer: str, timeout_s: float) -> PeerStatus:
        """Ask a peer for its state, cursor and lag."""
        ...
