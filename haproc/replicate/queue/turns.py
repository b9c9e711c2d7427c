"""The order of ready operations: conflicts, DDL, decisions, and the users' shares of the lanes."""

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
    """The later log records that operations wait for: decisions and rows.

    Operations are known by their offsets; ``me`` is the cluster's name.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._permitted: set[int] = set()
        self._verdicts: dict[int, DecisionKind] = {}
        self._provided: set[int] = set()

    def decide(self, offset: int, verdict: DecisionKind) -> bool:
        """Note the decision on a synchronous operation; False if an earlier one counts instead."""
        if offset in self._verdicts:
            return False
        self._verdicts[offset] = verdict
        return True

    def rejected(self, offset: int) -> bool:
        """True if the log is known to reject the operation."""
        return self._verdicts.get(offset) is DecisionKind.REJECT

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log."""
        self._provided.add(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run here before its decision is read from the log.

        The HAProc that received the operation asks for that, or the ring has rejected it.
        """
        self._permitted.add(offset)

    def lacks_rows(self, offset: int, op: Operation) -> bool:
        """True if the operation waits for its rows, which a query gives."""
        return op.computed and offset not in self._provided

    def lacks_decision(self, offset: int, op: Operation) -> bool:
        """True if the operation has its rows and still waits for its origin's decision."""
        if not op.synchronous or op.origin == self._me or self.lacks_rows(offset, op):
            return False
        return offset not in self._permitted and offset not in self._verdicts

    def lacks(self, offset: int, op: Operation) -> bool:
        """True if the operation waits for its rows or a decision."""
        return self.lacks_rows(offset, op) or self.lacks_decision(offset, op)

    def released(self, offset: int) -> None:
        """Note that the operation has run here; a permission to run is not needed any more."""
        self._permitted.discard(offset)

    def forget(self, low: int) -> None:
        """Forget the operations below an offset: they are done."""
        self._verdicts = {at: verdict for at, verdict in self._verdicts.items() if at >= low}
        self._provided = {at for at in self._provided if at >= low}


NOT_LONG_AGO: Final = 16_384
"""A user counts as active if it wrote within so many of the newest records. Chosen: as far as
operations may run ahead of an unfinished one."""
USERS_MAX: Final = 1_024
"""The most users whose last turn is remembered; the others count as having waited longest."""


class Sharing:
    """Chooses the user whose ready operation gets the next lane.

    The user with the fewest lanes comes first, then the one that got its last lane longest ago. A
    running operation keeps its lane, so one user could fill all lanes just before another one
    comes. So one lane is kept free if another user wrote within the last NOT_LONG_AGO records.

    Values in, values out.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._came: OrderedDict[str, int] = OrderedDict()
        """The two users that wrote last, each with the offset of its newest operation."""

    def came(self, user: str, offset: int) -> None:
        """Note that an operation of this user was read from the log."""
        self._came[user] = offset
        self._came.move_to_end(user)
        if len(self._came) > 2:
            self._came.popitem(last=False)

    def next(
        self, ready: Mapping[str, int], has: Mapping[str, int], lanes: int, read_to: int
    ) -> str | None:
        """Return the user whose operation starts next; None if no user may start one.

        ``ready``: by user, the offset of its first operation that may start. ``has``: the number of
        lanes that each user has. ``lanes``: the number of all lanes.
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
"""The most DDL statements at a time, so that their intents fit beside the cursor. Chosen: at most
three of them are long (CREATE TABLE AS), so short ones never wait for those."""


class Unmarked:
    """The statements without a transaction marker (DDL) that run, or that may have run earlier.

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
        """True if fewer DDL statements run than may run at a time, so that this one may begin.

        ``beside``: it computes a table, and may take long.
        """
        most = UNMARKED_MAX - 1 if beside else UNMARKED_MAX
        return offset in self._begun or len(self._begun) < most

    def begins(self, offset: int) -> None:
        """Count an operation as begun; it may run only after its intent (`stood`) is stored."""
        self._begun.add(offset)

    def over(self, offset: int) -> None:
        """Forget an operation that is done."""
        self._begun.discard(offset)
        self._stood.pop(offset, None)

    def keep(self, expected: Callable[[int], bool]) -> None:
        """Forget the operations for which ``expected`` is False: they must not run any more."""
        for offset in [offset for offset in self._begun if not expected(offset)]:
            self.over(offset)

    def doubted(self, offset: int) -> bool:
        """True if an earlier process stored an intent for the operation, and so may have run it."""
        return offset in self._old and offset in self._stood

    def stood(self, offset: int, before: str) -> None:
        """Note the fingerprint of an operation's objects before it runs; empty if there are none.

        This is its intent, and part of the progress from here on.
        """
        self._stood[offset] = before

    def before(self, offset: int) -> str:
        """Return the fingerprint of an operation's objects before it ran; empty: unknown."""
        return self._stood.get(offset, "")

    @property
    def stored(self) -> tuple[tuple[int, str], ...]:
        """The intents of the operations, as the progress stores them."""
        return tuple(sorted(self._stood.items()))


_COMPUTATIONS_MAX: Final = 16
"""The most statements remembered that compute tables. Chosen: more than run at a time."""


@dataclass(slots=True)
class _TableQueue:
    """The unfinished operations on one table, and those of them that write it; in log order.

    Most are removed at the front. A plain dict keeps gaps there, and would become slow.
    """

    touching: OrderedDict[int, Operation] = field(default_factory=OrderedDict)
    writing: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Turns:
    """Finds the *conflict-free* operations: they conflict with no unfinished one before them.

    Two operations conflict if one of them writes a table that the other reads or writes. An
    exclusive one conflicts with every other, with one exception: DDL that names all that it touches
    may start while a computation of a table (`Operation.beside`) before it still runs, if they
    share no name. The cost of adding or removing an operation does not depend on the number of the
    others.

    Operations are known by their offsets, and come in log order.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _TableQueue] = {}
        self._exclusive: OrderedDict[int, Operation] = OrderedDict()
        self._beside: OrderedDict[int, None] = OrderedDict()
        self._plain: OrderedDict[int, None] = OrderedDict()
        """The operations that are neither exclusive nor compute a table (CREATE TABLE AS)."""
        self.computations: OrderedDict[int, tuple[frozenset[str], frozenset[str]]] = OrderedDict()
        """By offset: the tables read and written by statements that compute a table.

        An entry stays until the statement is over on every cluster.
        """
        self._free: dict[str, list[int]] = {}
        """By user, in log order: operations that conflict with none before them; exclusive
        operations are not considered in this."""

    def queue_operation(self, offset: int, op: Operation) -> None:
        """Add an operation that has been read from the log."""
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
        """Remove a finished operation, and free the operations that waited only for it."""
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
        """Free the first operations on a table, after one on it was removed.

        If that one ``wrote`` the table: all readers up to the next writer. Else only the first one.
        """
        for offset, op in queue.touching.items():
            free = self._free.get(op.user, [])
            at = bisect_left(free, offset)
            if not _stands_in(free, at, offset) and self._is_free(offset, op):
                self._free.setdefault(op.user, free).insert(at, offset)
            if offset in queue.writing or not wrote:
                return

    def _is_free(self, offset: int, op: Operation) -> bool:
        """True if this operation conflicts with none before it; exclusive ones are not checked."""
        return all(
            next(iter(self._queues[table].touching)) == offset for table in op.writes
        ) and all(next(iter(self._queues[table].writing), offset) >= offset for table in op.reads)

    def newest(self, tables: Collection[str]) -> int:
        """Return the offset of the newest operation that writes the only table in ``tables``.

        -1 if there is none, or if ``tables`` are several.
        """
        queue = self._queues.get(next(iter(tables))) if len(tables) == 1 else None
        return -1 if queue is None else next(reversed(queue.writing), -1)

    def first_change(self, tables: Collection[str], none: int) -> int:
        """Return the offset of the first unfinished operation that may change the tables.

        ``none`` if there is none.
        """
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
        """True if the first exclusive operation may start: it conflicts with none before it."""
        op = self._exclusive[offset]
        if next(iter(self._plain), offset) < offset:
            return False
        if not op.named:
            return next(iter(self._beside), offset) >= offset
        return not any(self._stands_before(offset, op, table) for table in op.reads | op.writes)

    def _stands_before(self, offset: int, op: Operation, table: str) -> bool:
        """True if an earlier operation conflicts with this exclusive one because of ``table``."""
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
