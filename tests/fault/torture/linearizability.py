"""Is there an order of one key's operations, each at one moment, that explains every read?

The moment lies between the operation's begin and its end (linearizability: Herlihy and Wing). A
history of many keys is linearizable if each key's is, so keys are judged one by one. The search is
Wing and Gong's with Lowe's memory, as in Porcupine and Knossos: operations are put into an order
one after another; the next may be any that began before the first end of all remaining ones; a
*configuration* (the operations in the order, and the key's value after them) is visited once.

No value is written twice. So some tries can be omitted without missing an order:

- A read of the key's present value comes at once: later would only be harder. An overwritten value
  never comes back, so nothing is written while a read of the present one remains.
- All values that no remaining read shows are one value, `UNSEEN`. An UPDATE that changes only such
  a value comes at once. Of writes with the same effect the one that ends first comes first.
- The last read of a list shows the order in which its elements came.
- A write with an unknown outcome may take effect at any time after its begin, or never. If a read
  shows its value, it did before that read's end, and is a write like others. If none does, only its
  effect on an UPDATE (is there a row?) can matter; where even that can't, it is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tests.fault.torture.history import Verb
from tests.fault.torture.replay import held_after

STEPS_MAX = 2_000_000
"""Configurations after which a key counts as undecided: some twenty seconds.

Chosen; histories of real runs take about one for each write.
"""

Held: TypeAlias = tuple[int, ...]
"""The values of a key; the rows of a register in rising order."""
UNSEEN = -1
"""Stands for every value that no read shows."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on a key. ``verb``: None for a read, whose ``values`` are those it saw."""

    verb: Verb | None
    values: Held
    invoked_s: float
    completed_s: float = math.inf
    """Infinite for a write whose outcome is unknown."""
    label: str = ""
    """The client, the cluster and the offset, as text for people."""

    def __str__(self) -> str:
        ended = "  never" if self.completed_s == math.inf else f"{self.completed_s:7.2f}"
        return f"{self.invoked_s:7.2f} to {ended} s: {self.label}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a search. ``possible``: None if the search was given up."""

    possible: bool | None
    steps: int


_Kind: TypeAlias = tuple[Verb | None, Held]
"""The common part of all writes with the same effect."""
_Configuration: TypeAlias = tuple[int, int, tuple[int, ...], Held]
"""The operations in the order so far, and the content of the key.

All operations before the first number are in the order, and those behind it whose bit is set; then
the numbers of spare writes used, by kind; then the content of the key.
"""


def search(calls: Sequence[Call], initial: Held = (), steps_max: int = STEPS_MAX) -> Answer:
    """Look for an order of a key's operations that explains every read."""
    return _Search(calls).run(initial, steps_max)


def _after(held: Held, verb: Verb, values: Held) -> Held:
    changed = held_after(held, verb, values)
    return tuple(sorted(changed)) if verb is Verb.INSERT else changed


class _Search:
    """The operations of a key, prepared for the search."""

    def __init__(self, calls: Sequence[Call]) -> None:
        shown_s = first_shown_s(calls)
        updated = any(call.verb is Verb.UPDATE for call in calls)
        fixed: list[Call] = []
        spares: dict[_Kind, list[float]] = defaultdict(list)
        for call in calls:
            values = tuple(value if value in shown_s else UNSEEN for value in call.values)
            call = replace(call, values=values)
            if call.verb is not None and call.completed_s == math.inf:
                end_s = min((shown_s[v] for v in values if v != UNSEEN), default=math.inf)
                call = replace(call, completed_s=max(end_s, call.invoked_s))
            if call.completed_s < math.inf:
                fixed.append(call)
            elif call.verb is Verb.DELETE or (updated and call.verb is not Verb.UPDATE):
                spares[call.verb, values].append(call.invoked_s)
        self._fixed = sorted(fixed, key=lambda call: call.invoked_s)
        self._spares = [(kind, sorted(begins)) for kind, begins in spares.items()]
        self._reads: Mapping[Held, list[int]] = defaultdict(list)
        self._showing: Mapping[int, list[int]] = defaultdict(list)
        for at, call in enumerate(self._fixed):
            if call.verb is None:
                self._reads[call.values].append(at)
                for value in call.values:
                    self._showing[value].append(at)
        self._longest = self._longest_read(calls)

    def _longest_read(self, calls: Sequence[Call]) -> int | None:
        """Return the read that determines the next value while it is left, if append-only."""
        if any(call.verb not in (None, Verb.APPEND) for call in calls):
            return None
        reads = (at for indices in self._reads.values() for at in indices)
        return max(reads, key=lambda at: len(self._fixed[at].values), default=None)

    def run(self, initial: Held, steps_max: int) -> Answer:
        """Search depth first."""
        waiting: list[_Configuration] = [(0, 0, (0,) * len(self._spares), initial)]
        # With fewer spare writes used everything is possible that is with more.
        visited: dict[tuple[int, int, Held], list[tuple[int, ...]]] = defaultdict(list)
        steps = 0
        while waiting:
            configuration, left, end_s = self._with_what_fits(waiting.pop())
            if not left:
                return Answer(True, steps)
            base, mask, used, held = configuration
            before = visited[base, mask, held]
            if any(all(a <= b for a, b in zip(other, used, strict=True)) for other in before):
                continue
            if steps == steps_max:
                return Answer(None, steps)
            before.append(used)
            steps += 1
            # What ends first is tried first, so it is put on top.
            waiting += reversed([*self._next(configuration, left, end_s)])
        return Answer(False, steps)

    def _with_what_fits(
        self, configuration: _Configuration
    ) -> tuple[_Configuration, Sequence[int], float]:
        """Take all that fits; return the operations that may follow, and their first end."""
        base, mask, used, held = configuration
        fixed = self._fixed
        while True:
            left: list[int] = []
            end_s, at = math.inf, base
            while at < len(fixed) and fixed[at].invoked_s <= end_s:
                if not mask >> (at - base) & 1:
                    left.append(at)
                    end_s = min(end_s, fixed[at].completed_s)
                at += 1
            idle = all(value == UNSEEN for value in held)
            fitting = [i for i in left if _fits(fixed[i], held, idle)]
            for i in fitting:
                mask |= 1 << (i - base)
            while mask & 1:
                base, mask = base + 1, mask >> 1
            left_to_show = (self._is_left(self._showing[v], base, mask) for v in held)
            seen = tuple(v if yes else UNSEEN for v, yes in zip(held, left_to_show, strict=True))
            if not fitting and seen == held:
                return (base, mask, used, held), left, end_s
            held = seen

    def _is_left(self, reads: Sequence[int], base: int, mask: int) -> bool:
        """True if one of these reads is not in the order yet."""
        first = bisect_left(reads, base)
        return any(not self._stands(at, base, mask) for at in reads[first:])

    def _next(
        self, configuration: _Configuration, left: Sequence[int], end_s: float
    ) -> Iterator[_Configuration]:
        """Yield every configuration that one more write leads to."""
        base, mask, used, held = configuration
        if held and held in self._reads and self._is_left(self._reads[held], base, mask):
            return
        tried: set[_Kind] = set()
        for i in self._writable(left, held, base, mask):
            call = self._fixed[i]
            if call.verb is not None and (call.verb, call.values) not in tried:
                tried.add((call.verb, call.values))
                more = mask | 1 << (i - base)
                yield base, more, used, _after(held, call.verb, call.values)
        for number, (kind, begins) in enumerate(self._spares):
            count = used[number]
            if kind in tried or count == len(begins) or begins[count] > end_s:
                continue
            verb, values = kind
            changed = held if verb is None else _after(held, verb, values)
            if changed != held:
                yield base, mask, (*used[:number], count + 1, *used[number + 1 :]), changed

    def _writable(self, left: Sequence[int], held: Held, base: int, mask: int) -> Iterator[int]:
        """Yield the writes that may be next, in the order of their ends."""
        wanted: Held | None = None
        if self._longest is not None and not self._stands(self._longest, base, mask):
            shown = self._fixed[self._longest].values
            wanted = shown[len(held) : len(held) + 1] if shown[: len(held)] == held else ()
        for i in sorted(left, key=lambda i: self._fixed[i].completed_s):
            if self._fixed[i].verb is not None and wanted in (None, self._fixed[i].values):
                yield i

    def _stands(self, at: int, base: int, mask: int) -> bool:
        return at < base or bool(mask >> (at - base) & 1)


def _fits(call: Call, held: Held, idle: bool) -> bool:
    """Return whether a call can be next and change nothing; ``idle``: no read shows the content."""
    if call.verb is None:
        return call.values == held
    return idle and call.verb is Verb.UPDATE and call.values == (UNSEEN,)


def first_shown_s(calls: Iterable[Call]) -> dict[int, float]:
    """Return by value the first end of a read that shows it."""
    found: dict[int, float] = {}
    for call in calls:
        if call.verb is None:
            for value in call.values:
                found[value] = min(call.completed_s, found.get(value, math.inf))
    return found
