"""The fewest of a key's operations that have no order, for people to read.

First the shortest prefix without an order: the operation that ends it is *stuck*. Then, for any
earlier content of the key: mostly the stuck operation contradicts one other value, so its own value
is compared with every other one, with all operations that wrote or saw them. If that finds nothing,
the operations before some idle moment are left out. Last, those that the contradiction does not
need.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.fault.torture.history import Verb
from tests.fault.torture.linearizability import (
    STEPS_MAX,
    UNSEEN,
    Call,
    Held,
    first_shown_s,
    search,
)

_TRIES_MAX = 500
_THINNED_MAX = 80
_LINES_MAX = 40


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The fewest operations found without an order; ``stuck`` is the last of them to end."""

    calls: tuple[Call, ...]
    stuck: Call
    unwritten: Held
    """The values that the read shows and nobody ever wrote."""

    def __str__(self) -> str:
        shown = self.calls[-_LINES_MAX:]
        earlier = len(self.calls) - len(shown)
        lines = [f"and {earlier} earlier ones"] * (earlier > 0) + [str(call) for call in shown]
        around = "".join(f"\n      {line}" for line in lines)
        return f"{self.stuck.label}: {self._why()}{around}"

    def _why(self) -> str:
        if self.unwritten:
            return f"nobody wrote {', '.join(map(str, self.unwritten))}"
        return _why(self.calls, self.stuck)


def contradiction(calls: Sequence[Call]) -> Contradiction:
    """Return the contradiction in these operations, for which `search` found no order."""
    known = _until(calls, _stuck_s(calls))
    end_s = max(call.completed_s for call in known if call.completed_s < math.inf)
    ended = [call for call in known if call.completed_s == end_s]
    stuck = next((call for call in ended if call.verb is None), ended[0])
    window = _against_another_value(known, stuck) or _from_latest_beginning(known)
    whole = window is None
    window = known if window is None else window
    if len(window) <= _THINNED_MAX:
        window = _thinned(window, whole, stuck)
    if _impossible(wider := [*window, *_writers(known, window)], whole):
        window = wider
    ordered = sorted(window, key=lambda call: call.invoked_s)
    wrote = _written(calls)
    unwritten = tuple(value for value in stuck.values if value not in wrote)
    return Contradiction(tuple(ordered), stuck, unwritten)


def _stuck_s(calls: Sequence[Call]) -> float:
    """Return the time of the first end up to which the operations have no order."""
    ends = sorted({call.completed_s for call in calls if call.completed_s < math.inf})
    at = bisect_left(ends, True, key=lambda end_s: search(_until(calls, end_s)).possible is False)
    return ends[min(at, len(ends) - 1)]


def _until(calls: Sequence[Call], end_s: float) -> list[Call]:
    """Return the history as known at this time, with the later writers of values seen then."""
    ended = [call for call in calls if call.completed_s <= end_s]
    shown_s = first_shown_s(ended)
    pending = [
        call
        for call in calls
        if call.verb is not None
        and call.completed_s > end_s
        and (call.invoked_s <= end_s or any(value in shown_s for value in call.values))
    ]
    return ended + [replace(call, completed_s=math.inf) for call in pending]


def _impossible(calls: Sequence[Call], whole: bool) -> bool:
    """Return whether these have no order; if not the whole, for any first content of the key."""
    initials = {()} if whole else _initials(calls)
    return all(search(calls, held, STEPS_MAX // 100).possible is False for held in initials)


def _initials(calls: Sequence[Call]) -> set[Held]:
    """Return the possible earlier contents of a key: values in reads that nobody here wrote."""
    wrote = _written(calls)
    shown = {
        tuple(value for value in call.values if value not in wrote)
        for call in calls
        if call.verb is None
    }
    return {(), (UNSEEN,), *shown}


def _written(calls: Sequence[Call]) -> set[int]:
    return {value for call in calls if call.verb is not None for value in call.values}


def _against_another_value(calls: Sequence[Call], stuck: Call) -> list[Call] | None:
    """Compare the stuck value with each other write and its readers; None: no conflict."""
    mine = _around(calls, stuck.values, stuck)
    others = [call for call in calls if call.verb is not None and call not in mine]
    others.sort(key=lambda call: abs(call.invoked_s - stuck.invoked_s))
    for other in others[:_TRIES_MAX]:
        theirs = _around(calls, other.values, other)
        both = mine + [call for call in theirs if call not in mine]
        if any(call.verb is None and not call.values for call in both):
            begun_s = min(call.invoked_s for call in both)
            both += _deletes(calls, both, begun_s)
        both += _writers(calls, both)
        if _impossible(both, whole=False):
            return both
    return None


def _around(calls: Sequence[Call], values: Held, one: Call) -> list[Call]:
    """Return an operation, and the calls that wrote or saw its last values."""
    wanted = set(values[-2:])
    return [call for call in calls if call is one or wanted & set(call.values)]


def _deletes(calls: Sequence[Call], there: Sequence[Call], begun_s: float) -> Iterator[Call]:
    """Yield all deletes that may explain an empty key."""
    for call in calls:
        if call.verb is Verb.DELETE and call.completed_s >= begun_s and call not in there:
            yield call


def _from_latest_beginning(calls: list[Call]) -> list[Call] | None:
    """Leave out the operations before an idle moment; None if all of them matter."""
    sure = sorted((c for c in calls if c.completed_s < math.inf), key=lambda c: c.invoked_s)
    unknown = [call for call in calls if call.completed_s == math.inf]
    beginnings, busy_s = list[int](), -math.inf
    for at, call in enumerate(sure):
        if call.invoked_s > busy_s:
            beginnings.append(at)
        busy_s = max(busy_s, call.completed_s)
    for at in reversed(beginnings[1:][-_TRIES_MAX:]):
        if _impossible(later := sure[at:] + unknown, whole=False):
            return later
    return None


def _thinned(calls: list[Call], whole: bool, stuck: Call) -> list[Call]:
    """Leave out, one by one, operations that are not needed: reads, then unseen writes."""
    for call in sorted(calls, key=lambda call: (call.verb is not None, call.invoked_s)):
        without = [other for other in calls if other is not call]
        if call is not stuck and not _explains(call, without) and _impossible(without, whole):
            calls = without
    return calls


def _explains(call: Call, others: Sequence[Call]) -> bool:
    """Return whether the others' reads would need another explanation without this operation."""
    verbs = {other.verb for other in others}
    if call.verb is Verb.DELETE:
        return any(other.verb is None and not other.values for other in others)
    if call.verb in (Verb.PUT, Verb.INSERT) and {Verb.DELETE, Verb.UPDATE} <= verbs:
        return True  # it may have made the row
    shown_s = first_shown_s(others)
    return call.verb is not None and any(value in shown_s for value in call.values)


def _writers(calls: Sequence[Call], window: Sequence[Call]) -> list[Call]:
    """Return the missing writers of the values that the window's reads show last."""
    shown = {value for call in window if call.verb is None for value in call.values[-2:]}
    wanted = shown - _written(window)
    return [call for call in calls if call.verb is not None and wanted & set(call.values)]


def _why(calls: Sequence[Call], stuck: Call) -> str:
    shown_s = first_shown_s(calls)
    writers = [call for call in calls if call.verb is not None]
    mine = [call for call in writers if set(call.values) & set(stuck.values)]
    for writer in mine if stuck.verb is None else ():
        if writer.invoked_s > stuck.completed_s:
            return f"it shows a value from the future, of {writer.label}"

    def effective_s(call: Call) -> float:
        return min(call.completed_s, *(shown_s.get(value, math.inf) for value in call.values))

    newest_s = max(map(effective_s, mine), default=-math.inf)
    for later in writers if stuck.verb is None else ():
        replaced = later.verb is Verb.APPEND or newest_s < later.invoked_s
        ended_s = effective_s(later) if later.values else later.completed_s
        if later not in mine and replaced and ended_s < stuck.invoked_s:
            before_s = stuck.invoked_s - ended_s
            return f"it is stale: {later.label} had taken effect {before_s:.2f} s before it began"
    return "no order of these operations explains it"
