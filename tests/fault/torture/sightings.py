"""Checks that the reads during a run are possible, by cluster and table.

A read must contain the writes that its cluster had acknowledged before it began, those that the
cluster's stored cursor claimed to be applied before it began, and the content of earlier reads of
that cluster. A list must be a prefix of the list in the end.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.fault.torture.history import Content, Final, Op, Outcome, Read, Run, Verb, pack
from tests.fault.torture.replay import TableKind, kind_of
from tests.fault.torture.tables import ghosts, written
from tests.fault.torture.violations import Violation, Wrong

_SHOWN_MAX = 5


def check_reads(run: Run) -> Iterator[Violation]:
    """Judge every read of the run."""
    by_place: dict[tuple[str, str], list[Read]] = defaultdict(list)
    for read in run.reads:
        by_place[read.table, read.cluster].append(read)
    by_table: dict[str, list[Op]] = defaultdict(list)
    for op in run.ops:
        by_table[op.table].append(op)
    for (table, cluster), reads in by_place.items():
        ops = by_table[table]
        where = f"{table} on {cluster}"
        kind = kind_of(ops)
        reads.sort(key=lambda read: read.invoked_s)
        for read in reads:
            yield from _possible(where, ops, read)
        if kind is TableKind.REGISTER:
            yield from _registers_rise(where, cluster, ops, reads)
        else:
            yield from _nothing_missing(where, cluster, ops, reads)
        if kind is TableKind.LIST:
            yield from _beginnings(where, reads, run.finals)
            yield from _lists_grow(where, reads)


def _possible(where: str, ops: Sequence[Op], read: Read) -> Iterator[Violation]:
    begun = [op for op in ops if op.invoked_s <= read.completed_s]
    place = f"{where}, {read}"
    yield from ghosts(place, written(begun), read.content)
    if kind_of(ops) is TableKind.REGISTER:
        return
    for key, values in read.content.items():
        if len(set(values)) < len(values):
            twice = sorted({value for value in values if values.count(value) > 1})
            yield Violation(Wrong.DOUBLED, f"{place}: {pack(twice[:_SHOWN_MAX])} twice in {key!r}")


def _visible(op: Op, cluster: str, read: Read) -> Wrong | None:
    """Return the name of the error if the read does not see this write, or None if it need not."""
    if op.outcome is not Outcome.ACK:
        return None
    if read.position is not None and read.position.claims(op.offset):
        return Wrong.CURSOR
    return Wrong.STALE if op.cluster == cluster and op.completed_s < read.invoked_s else None


def _nothing_missing(
    where: str, cluster: str, ops: Sequence[Op], reads: Sequence[Read]
) -> Iterator[Violation]:
    """For sets and lists: nothing that must be visible is missing."""
    seen_before: dict[tuple[str, int], Read] = {}
    for read, finished in _with_those_before(reads):
        for earlier in finished:
            for key, values in earlier.content.items():
                seen_before |= {(key, value): earlier for value in values}
        held = {(key, value) for key, values in read.content.items() for value in values}
        for key, value in sorted(seen_before.keys() - held)[:_SHOWN_MAX]:
            yield Violation(
                Wrong.STALE,
                f"{where}, {read}: {key}={value} is missing, which {seen_before[key, value]} saw",
            )
        for op in ops:
            missing = [value for value in op.values if (op.key, value) not in held]
            if missing and op.verb in (Verb.INSERT, Verb.APPEND):
                wrong = _visible(op, cluster, read)
                if wrong is not None:
                    shown = pack(missing[:_SHOWN_MAX])
                    yield Violation(wrong, f"{where}, {read}: {shown} of {op} is missing")


def _with_those_before(reads: Sequence[Read]) -> Iterator[tuple[Read, list[Read]]]:
    """Yield each read (sorted by its begin) and those that ended since the last one's begin."""
    waiting: list[tuple[float, int, Read]] = []
    for number, read in enumerate(reads):
        finished = []
        while waiting and waiting[0][0] <= read.invoked_s:
            finished.append(heapq.heappop(waiting)[2])
        yield read, finished
        heapq.heappush(waiting, (read.completed_s, number, read))


def _registers_rise(
    where: str, cluster: str, ops: Sequence[Op], reads: Sequence[Read]
) -> Iterator[Violation]:
    """A register never shows a write before one that must be visible."""
    writers = written(ops)
    highest: dict[str, tuple[int, str]] = {}
    for read, finished in _with_those_before(reads):
        for earlier in finished:
            for key, offset in _shown(writers, earlier.content):
                if offset > highest.get(key, (-1, ""))[0]:
                    highest[key] = (offset, str(earlier))
        floor = dict(highest)
        kinds = dict.fromkeys(floor, Wrong.STALE)
        for op in ops:
            wrong = _visible(op, cluster, read)
            if wrong and op.offset is not None and op.offset > floor.get(op.key, (-1, ""))[0]:
                floor[op.key] = (op.offset, str(op))
                kinds[op.key] = wrong
        for key, offset in _shown(writers, read.content):
            if key in floor and offset < floor[key][0]:
                yield Violation(
                    kinds[key],
                    f"{where}, {read}: {key} shows the write at offset {offset}, behind "
                    f"{floor[key][1]}",
                )


def _shown(writers: Mapping[tuple[str, int], Op], content: Content) -> Iterator[tuple[str, int]]:
    """Yield the keys of registers with the offset of the newest write that they show."""
    for key, values in content.items():
        known = [writers[key, value].offset for value in values if (key, value) in writers]
        # Where one is not known, it may be the newest.
        offsets = [offset for offset in known if offset is not None]
        if offsets and len(offsets) == len(values):
            yield key, max(offsets)


def _beginnings(where: str, reads: Sequence[Read], finals: Sequence[Final]) -> Iterator[Violation]:
    for read in reads:
        for final in finals:
            last = final.tables.get(read.table) or {}
            for key, values in read.content.items():
                if last.get(key, ())[: len(values)] != values:
                    yield Violation(
                        Wrong.ORDER,
                        f"{where}, {read}: {key} is {pack(values)}, which is not how it begins on "
                        f"{final.cluster} in the end",
                    )


def _lists_grow(where: str, reads: Sequence[Read]) -> Iterator[Violation]:
    longest: dict[str, tuple[int, ...]] = {}
    for read, finished in _with_those_before(reads):
        for earlier in finished:
            for key, values in earlier.content.items():
                longest[key] = max(values, longest.get(key, ()), key=len)
        for key, values in longest.items():
            if read.content.get(key, ())[: len(values)] != values:
                yield Violation(
                    Wrong.STALE,
                    f"{where}, {read}: {key} went from {pack(values)} to "
                    f"{pack(read.content.get(key, ()))}",
                )
