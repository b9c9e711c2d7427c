"""The order of ready operations: conflicts, missing marks, decisions, shares of the lanes."""

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
    """Tells if an operation still waits for a later record: a decision, or its rows.

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
        """True if it is known to be rejected."""
        return self._verdicts.get(offset) is DecisionKind.REJECT

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log."""
        self._provided.add(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run before its decision: its origin asked for it."""
        self._permitted.add(offset)

    def lacks_rows(self, offset: int, op: Operation) -> bool:
        """True if it waits for its rows."""
        return op.computed and offset not in self._provided

    def lacks_decision(self, offset: int, op: Operation) -> bool:
        """True if it waits for a decision, once its rows are there."""
        if not op.synchronous or op.origin == self._me or self.lacks_rows(offset, op):
            return False
        return offset not in self._permitted and offset not in self._verdicts

    def lacks(self, offset: int, op: Operation) -> bool:
        """True if it waits for either."""
        return self.lacks_rows(offset, op) or self.lacks_decision(offset, op)

    def released(self, offset: int) -> None:
        """It was run here."""
        self._permitted.discard(offset)

    def forget(self, low: int) -> None:
        """Forget what is done."""
        self._verdicts = {at: verdict for at, verdict in self._verdicts.items() if at >= low}
        self._provided = {at for at in self._provided if at >= low}


NOT_LONG_AGO: Final = 16_384
"""Records. Chosen: as far as operations run ahead of each other."""
USERS_MAX: Final = 1_024
"""Users whose last time with a lane is known; the others count as having waited longest."""


class Sharing:
    """The choice of the ready operation that gets the next lane.

    The user with the fewest lanes comes first, then the one whose operation has waited longest. A
    running operation keeps its lane, so one user could fill all lanes just before another one
    comes. Therefore one lane is kept free while another user has written something not long ago.

    Values in, values out.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._came: OrderedDict[str, int] = OrderedDict()
        """The newest operations of the two users that wrote last."""

    def came(self, user: str, offset: int) -> None:
        """An operation of this user was read from the log."""
        self._came[user] = offset
        self._came.move_to_end(user)
        if len(self._came) > 2:
            self._came.popitem(last=False)

    def next(
        self, ready: Mapping[str, int], has: Mapping[str, int], lanes: int, read_to: int
    ) -> str | None:
        """Return the user whose operation starts next; None if none may.

        ``ready``: the first offset of each user that may start; ``has``: how many lanes each user
        has, of so many.
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
        """This user got a lane."""
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
"""At a time, so that their intents fit beside the cursor. Chosen: of those that take long at most
three run, so that short ones never wait for them."""


class Unmarked:
    """The statements without a mark (DDL) that run, or that an earlier process may have run.

    Each has an intent of its own, stored before it starts: its offset, and what stood there
    before it. There is none before somebody has looked: what has no intent was not begun, and an
    operation in doubt is one of which it is known what stood there.

    Operations are known by their offsets; ``stored`` comes from the progress.
    """

    def __init__(self, stored: Iterable[tuple[int, str]] = (), low: int = 0) -> None:
        self._stood = {offset: before for offset, before in stored if offset >= low}
        self._old = frozenset(self._stood)
        self._begun = set(self._stood)

    def may_begin(self, offset: int, *, beside: bool) -> bool:
        """True if there is room for one more; ``beside``: it may take long."""
        most = UNMARKED_MAX - 1 if beside else UNMARKED_MAX
        return offset in self._begun or len(self._begun) < most

    def begins(self, offset: int) -> None:
        """It takes its place; its statement may run once it is stored what `stood` there."""
        self._begun.add(offset)

    def over(self, offset: int) -> None:
        """It needs no more running."""
        self._begun.discard(offset)
        self._stood.pop(offset, None)

    def keep(self, expected: Callable[[int], bool]) -> None:
        """Forget whatever is not to be run any more."""
        for offset in [offset for offset in self._begun if not expected(offset)]:
            self.over(offset)

    def doubted(self, offset: int) -> bool:
        """True if an earlier process may have run it."""
        return offset in self._old and offset in self._stood

    def stood(self, offset: int, before: str) -> None:
        """Note what stands there before it, empty if it is about nothing that can be looked at.

        That is its intent, and part of the progress from here on.
        """
        self._stood[offset] = before

    def before(self, offset: int) -> str:
        """Return that; empty if it is not known."""
        return self._stood.get(offset, "")

    @property
    def stored(self) -> tuple[tuple[int, str], ...]:
        """The part of it that is stored."""
        return tuple(sorted(self._stood.items()))


_COMPUTATIONS_MAX: Final = 16
"""Chosen: more than there may be under way on a cluster that serves."""


@dataclass(slots=True)
class _Line:
    """The unfinished operations that touch one table, and which of them write it; in log order.

    Most go from the front, where a plain dict would leave gaps to be stepped over.
    """

    touching: OrderedDict[int, Operation] = field(default_factory=OrderedDict)
    writing: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Turns:
    """The operations that conflict with nothing unfinished before them.

    Two operations conflict if one of them writes a table that the other reads or writes. An
    exclusive one conflicts with every other, with one exception: DDL that names all that it touches
    starts while a computation of a table (`Operation.beside`) runs in front of it, if they share no
    name. Each operation that comes or goes updates this, so one costs the same however many wait.

    Operations are known by their offsets, and come in log order.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._exclusive: OrderedDict[int, Operation] = OrderedDict()
        self._beside: OrderedDict[int, None] = OrderedDict()
        self._plain: OrderedDict[int, None] = OrderedDict()
        """The operations that are neither of the two."""
        self.computations: OrderedDict[int, tuple[frozenset[str], frozenset[str]]] = OrderedDict()
        """The tables of recent computations, until these are over on every cluster."""
        self._free: dict[str, list[int]] = {}
        """By user: what conflicts with nothing before it that is not exclusive; in log order."""

    def add(self, offset: int, op: Operation) -> None:
        """Take in an operation."""
        if op.exclusive:
            self._exclusive[offset] = op
            return
        (self._beside if op.beside else self._plain)[offset] = None
        if op.beside:
            self.computations[offset] = op.reads, op.writes
            if len(self.computations) > _COMPUTATIONS_MAX:
                self.computations.popitem(last=False)
        for table in op.reads | op.writes:
            line = self._lines.setdefault(table, _Line())
            line.touching[offset] = op
            if table in op.writes:
                line.writing[offset] = None
        if self._is_free(offset, op):
            self._free.setdefault(op.user, []).append(offset)

    def leave(self, offset: int, op: Operation) -> None:
        """Let an operation go: what waited only for it is free."""
        if op.exclusive:
            del self._exclusive[offset]
            return
        del (self._beside if op.beside else self._plain)[offset]
        free = self._free.get(op.user, [])
        if _stands_in(free, at := bisect_left(free, offset), offset):
            del free[at]
            if not free:
                del self._free[op.user]
        moved: list[tuple[_Line, bool]] = []
        for table in op.reads | op.writes:
            line = self._lines[table]
            del line.touching[offset]
            line.writing.pop(offset, None)
            if line.touching:
                moved.append((line, table in op.writes))
            else:
                del self._lines[table]
        for line, wrote in moved:
            self._move_up(line, wrote)

    def _move_up(self, line: _Line, wrote: bool) -> None:
        """Free the first operation; behind one that ``wrote``, all readers up to a writer."""
        for offset, op in line.touching.items():
            free = self._free.get(op.user, [])
            at = bisect_left(free, offset)
            if not _stands_in(free, at, offset) and self._is_free(offset, op):
                self._free.setdefault(op.user, free).insert(at, offset)
            if offset in line.writing or not wrote:
                return

    def _is_free(self, offset: int, op: Operation) -> bool:
        """True if nothing before it writes what it touches, or reads what it writes."""
        return all(
            next(iter(self._lines[table].touching)) == offset for table in op.writes
        ) and all(next(iter(self._lines[table].writing), offset) >= offset for table in op.reads)

    def newest(self, tables: Collection[str]) -> int:
        """Return the newest of those that write a table; -1 if none does, or there are others."""
        line = self._lines.get(next(iter(tables))) if len(tables) == 1 else None
        return -1 if line is None else next(reversed(line.writing), -1)

    def first_change(self, tables: Collection[str], none: int) -> int:
        """Return the first unfinished one that may change what tables hold or are; or ``none``."""
        lines = (self._lines[table] for table in tables if table in self._lines)
        firsts = [next(iter(line.writing), none) for line in lines]
        return min([next(iter(self._exclusive), none), *firsts])

    def in_turn(self, below: int) -> Iterator[int]:
        """Yield those below an offset whose turn it is, in log order."""
        yield from merge(*self.by_user(below).values())

    def by_user(self, below: int) -> Mapping[str, Iterator[int]]:
        """Return them by user, each in log order.

        Behind an exclusive one nothing's turn comes.
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
        if (line := self._lines.get(table)) is None:
            return False
        others = line.touching if table in op.writes else line.writing
        return next(iter(others), offset) < offset

    def behind(self, table: str, offset: int, below: int) -> Iterator[int]:
        """Yield those from one whose turn it is, below another offset, that touch a table.

        As far as the next exclusive one.
        """
        below = self._as_far_as(below)
        for each in self._lines[table].touching:
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
