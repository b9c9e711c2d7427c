"""The order of ready operations: conflicts, DDL, decisions, and shares of the lanes."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from typing import Final

from haproc.replicate.records.operation import DecisionKind, Operation


class Readiness:
    """The later records that operations wait for: decisions, and rows.

    Operations are known by their offsets; ``me`` is the cluster's name.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._permitted: set[int] = set()
        self._verdicts: dict[int, DecisionKind] = {}
        self._provided: set[int] = set()

    def decide(self, offset: int, verdict: DecisionKind) -> bool:
        """Note a synchronous operation's fate; False if it was known: the first one counts."""
        if offset in self._verdicts:
            return False
        self._verdicts[offset] = verdict
        return True

    def rejected(self, offset: int) -> bool:
        """True if the operation is known to be rejected."""
        return self._verdicts.get(offset) is DecisionKind.REJECT

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log."""
        self._provided.add(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run before its decision: its origin asked for it."""
        self._permitted.add(offset)

    def lacks_rows(self, offset: int, op: Operation) -> bool:
        """True if the operation waits for its rows."""
        return op.computed and offset not in self._provided

    def lacks_decision(self, offset: int, op: Operation) -> bool:
        """True if the operation waits for a decision, and has its rows."""
        if not op.synchronous or op.origin == self._me or self.lacks_rows(offset, op):
            return False
        return offset not in self._permitted and offset not in self._verdicts

    def lacks(self, offset: int, op: Operation) -> bool:
        """True if the operation waits for its rows or a decision."""
        return self.lacks_rows(offset, op) or self.lacks_decision(offset, op)

    def released(self, offset: int) -> None:
        """Note that the operation was run here."""
        self._permitted.discard(offset)

    def forget(self, low: int) -> None:
        """Forget the operations below an offset: they are done."""
        self._verdicts = {at: verdict for at, verdict in self._verdicts.items() if at >= low}
        self._provided = {at for at in self._provided if at >= low}


NOT_LONG_AGO: Final = 16_384
"""A user counts as active if it wrote within so many of the newest records. Chosen: as far as
operations run ahead of each other."""
USERS_MAX: Final = 1_024
"""The most users with a known last turn; the others count as having waited longest."""


class Sharing:
    """The choice of the ready operation that gets the next lane.

    The user with the fewest lanes comes first, then the one whose operation has waited longest. A
    running operation keeps its lane, so one user could fill all lanes just before another one
    comes. So one lane is kept free if another user wrote within the last NOT_LONG_AGO records.

    Values in, values out.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._came: OrderedDict[str, int] = OrderedDict()
        """The newest operations of the two users that wrote last."""

    def came(self, user: str, offset: int) -> None:
        """Note that an operation of this user was read from the log."""
        self._came[user] = offset
        self._came.move_to_end(user)
        if len(self._came) > 2:
            self._came.popitem(last=False)

    def next(
        self, ready: Mapping[str, int], has: Mapping[str, int], lanes: int, read_to: int
    ) -> str | None:
        """Return the user whose operation starts next; None if none may.

        ``ready``: by user, the first offset that may start. ``has``: the lanes that each user has.
        ``lanes``: the number of all lanes.
        """
        allowed = [user for user in ready if self._may_have(user, has, lanes, read_to)]
        if not allowed:
            return None
        if len(allowed) == 1:
            return allowed[0]
        return min(
            allowed,
            key=lambda user: (has.get(user, 0), self._served.get(user, 0), ready[user]),
        )

    def served(self, user: str) -> None:
        """Note that this user got a lane."""
        self._count += 1
        self._served[user] = self._count
        self._served.move_to_end(user)
        if len(self._served) > USERS_MAX:
            self._served.popitem(last=False)

    def _may_have(self, user: str, has: Mapping[str, int], lanes: int, read_to: int) -> bool:
        if has.get(user, 0) < lanes - 1 or lanes == 1:
            return True
        since = read_to - NOT_LONG_AGO
        return not any(other != user and at >= since for other, at in self._came.items())


UNMARKED_MAX: Final = 4
"""The most DDL at a time, so that the intents fit beside the cursor. Chosen: at most three of them
are long, so short ones never wait for those."""


class Unmarked:
    """The statements without a transaction marker (DDL) that run, or may have run earlier.

    Each has its own intent, which is stored before it starts: its offset, and a fingerprint of the
    objects that it is about. An operation without an intent was not begun. So the fingerprint of an
    operation in doubt is known.

    Operations are known by their offsets; ``stored``: the intents in the progress.
    """

    def __init__(self, stored: Iterable[tuple[int, str]] = (), low: int = 0) -> None:
        self._stood = {offset: before for offset, before in stored if offset >= low}
        self._old = frozenset(self._stood)
        self._begun = set(self._stood)

    def may_begin(self, offset: int, *, beside: bool) -> bool:
        """True if the operation may begin beside the others; ``beside``: it may take long."""
        most = UNMARKED_MAX - 1 if beside else UNMARKED_MAX
        return offset in self._begun or len(self._begun) < most

    def begins(self, offset: int) -> None:
        """Count the operation as begun; it may run once its intent (`stood`) is stored."""
        self._begun.add(offset)

    def over(self, offset: int) -> None:
        """Forget an operation that is done."""
        self._begun.discard(offset)
        self._stood.pop(offset, None)

    def keep(self, expected: Callable[[int], bool]) -> None:
        """Forget the operations that are not to be run any more."""
        for offset in [offset for offset in self._begun if not expected(offset)]:
            self.over(offset)

    def doubted(self, offset: int) -> bool:
        """True if an earlier process may have run the operation."""
        return offset in self._old and offset in self._stood

    def stood(self, offset: int, before: str) -> None:
        """Note the fingerprint before an operation; empty if it has no objects to look up.

        This is its intent, and part of the progress from here on.
        """
        self._stood[offset] = before

    def before(self, offset: int) -> str:
        """Return the fingerprint before an operation; empty if none is known."""
        return self._stood.get(offset, "")

    @property
    def stored(self) -> tuple[tuple[int, str], ...]:
        """The intents, as the progress stores them."""
        return tuple(sorted(self._stood.items()))


_COMPUTATIONS_MAX: Final = 16
"""The most computations remembered. Chosen: more than run on a cluster that serves."""


@dataclass(slots=True)
class _TableQueue:
    """The unfinished operations on one table, and those that write it; in log order.

    Most are removed at the front, where a plain dict would become slow: it keeps gaps.
    """

    touching: OrderedDict[int, Operation] = field(default_factory=OrderedDict)
    writing: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Turns:
    """The *conflict-free* operations: they conflict with no unfinished one before them.

    Two operations conflict if one of them writes a table that the other reads or writes. An
    exclusive one conflicts with every other, with one exception: DDL that names all that it touches
    starts while a computation of a table (`Operation.beside`) runs in front of it, if they share no
    name. Each operation that comes or goes updates this; its cost does not depend on the others.

    Operations are known by their offsets, and come in log order.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _TableQueue] = {}
        self._exclusive: OrderedDict[int, Operation] = OrderedDict()
        self._beside: OrderedDict[int, None] = OrderedDict()
        self._plain: OrderedDict[int, None] = OrderedDict()
        """The operations that are neither exclusive nor computations of tables."""
        self.computations: OrderedDict[int, tuple[frozenset[str], frozenset[str]]] = OrderedDict()
        """The tables of recent computations, until these are over on every cluster."""
        self._free: dict[str, list[int]] = {}
        """By user, in log order: operations that are conflict-free but for exclusive ones."""

    def queue_operation(self, offset: int, op: Operation) -> None:
        """Add an operation."""
        if op.exclusive:
            self._exclusive[offset] = op
            return
        (self._beside if op.beside else self._plain)[offset] = None
        if op.beside:
            self.computations[offset] = op.reads, op.writes
            if len(self.computations) > _COMPUTATIONS_MAX:
                self.computations.popitem(last=False)
        for table in op.reads | op.writes:
            queue = self._queues.setdefault(table, _TableQueue())
            queue.touching[offset] = op
            if table in op.writes:
                queue.writing[offset] = None
        if self._is_free(offset, op):
            self._free.setdefault(op.user, []).append(offset)

    def leave(self, offset: int, op: Operation) -> None:
        """Remove an operation, and free those that waited only for it."""
        if op.exclusive:
            del self._exclusive[offset]
            return
        del (self._beside if op.beside else self._plain)[offset]
        free = self._free.get(op.user, [])
        if _stands_in(free, at := bisect_left(free, offset), offset):
            del free[at]
            if not free:
                del self._free[op.user]
        moved: list[tuple[_TableQueue, bool]] = []
        for table in op.reads | op.writes:
            queue = self._queues[table]
            del queue.touching[offset]
            queue.writing.pop(offset, None)
            if queue.touching:
                moved.append((queue, table in op.writes))
            else:
                del self._queues[table]
        for queue, wrote in moved:
            self._move_up(queue, wrote)

    def _move_up(self, queue: _TableQueue, wrote: bool) -> None:
        """Free the first operation; if the removed one ``wrote``, all readers up to a writer."""
        for offset, op in queue.touching.items():
            free = self._free.get(op.user, [])
            at = bisect_left(free, offset)
            if not _stands_in(free, at, offset) and self._is_free(offset, op):
                self._free.setdefault(op.user, free).insert(at, offset)
            if offset in queue.writing or not wrote:
                return

    def _is_free(self, offset: int, op: Operation) -> bool:
        """True if nothing before it writes what it touches, or reads what it writes."""
        return all(
            next(iter(self._queues[table].touching)) == offset for table in op.writes
        ) and all(next(iter(self._queues[table].writing), offset) >= offset for table in op.reads)

    def newest(self, tables: Collection[str]) -> int:
        """Return the newest operation that writes a single table; -1: none, or more tables."""
        queue = self._queues.get(next(iter(tables))) if len(tables) == 1 else None
        return -1 if queue is None else next(reversed(queue.writing), -1)

    def first_change(self, tables: Collection[str], none: int) -> int:
        """Return the first unfinished operation that may change the tables, or ``none``."""
        queues = (self._queues[table] for table in tables if table in self._queues)
        firsts = [next(iter(queue.writing), none) for queue in queues]
        return min([next(iter(self._exclusive), none), *firsts])

    def in_turn(self, below: int) -> Iterator[int]:
        """Yield the conflict-free operations below an offset, in log order."""
        yield from merge(*self.by_user(below).values())

    def by_user(self, below: int) -> Mapping[str, Iterator[int]]:
        """Return the conflict-free operations below an offset, by user, in log order.

        No operation after an unfinished exclusive one is conflict-free.
        """
        first = next(iter(self._exclusive), None)
        ahead = self._as_far_as(below)
        found = {user: _below(offsets, ahead) for user, offsets in self._free.items()}
        if first is not None and first < below and self._comes(first):
            user = self._exclusive[first].user
            found[user] = chain(found.get(user, ()), [first])
        return found

    def _comes(self, offset: int) -> bool:
        """True if the turn of the first exclusive operation has come."""
        op = self._exclusive[offset]
        if next(iter(self._plain), offset) < offset:
            return False
        if not op.named:
            return next(iter(self._beside), offset) >= offset
        return not any(self._stands_before(offset, op, table) for table in op.reads | op.writes)

    def _stands_before(self, offset: int, op: Operation, table: str) -> bool:
        """True if an operation that is not exclusive conflicts with an exclusive one at a table."""
        if (queue := self._queues.get(table)) is None:
            return False
        others = queue.touching if table in op.writes else queue.writing
        return next(iter(others), offset) < offset

    def behind(self, table: str, offset: int, below: int) -> Iterator[int]:
        """Yield a table's operations from a conflict-free one, ``offset``, to before ``below``.

        It ends before the next exclusive operation.
        """
        below = self._as_far_as(below)
        for each in self._queues[table].touching:
            if each >= below:
                return
            if each >= offset:
                yield each

    def _as_far_as(self, below: int) -> int:
        return min(below, next(iter(self._exclusive), below))


def _stands_in(free: list[int], at: int, offset: int) -> bool:
    return at < len(free) and free[at] == offset


def _below(offsets: list[int], below: int) -> Iterator[int]:
    for offset in offsets:
        if offset >= below:
            return
        yield offset
