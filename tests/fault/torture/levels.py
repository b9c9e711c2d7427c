"""Checks that every read was as fresh as its level promises. Values in, values out.

Two ways that share only the history. By the clients alone: all linearizable reads and all writes of
a key have an order that explains them (`linearizability`). With the log: a read's content shows how
many of the log's records its cluster had applied (`prefixes`), and each level requires a least
number of them. The known end of the log when a read began is that of the records acknowledged and
shown by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.fault.torture.contradiction import contradiction
from tests.fault.torture.history import Level, Op, Outcome, Read, Run, pack
from tests.fault.torture.linearizability import Call, search
from tests.fault.torture.prefixes import TableLog, has_keys, held_by
from tests.fault.torture.replay import kind_of
from tests.fault.torture.violations import Violation, Wrong

_T = TypeVar("_T", Op, Read)


def check_levels(run: Run) -> Iterator[Violation]:
    """Judge every read of a table whose keys hold values."""
    yield from _linearizable(run)
    for judged in judged_reads(run):
        yield from judged.violations()


# -- by the clients alone ------------------------------------------------------------------------


def calls_by_key(run: Run) -> Mapping[tuple[str, str], Sequence[Call]]:
    """Return all writes and linearizable reads by table and key."""
    ops, reads = _by_table(run.ops), _by_table(run.reads)
    found: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for table, written in ops.items():
        if not has_keys(written):
            continue
        for op in written:
            if not op.outcome.failed:
                call = Call(op.verb, op.values, op.invoked_s, op.completed_s, str(op))
                found[table, op.key].append(call)
        kind = kind_of(written)
        for read in reads.get(table, ()):
            if read.level is Level.LINEARIZABLE:
                for key in {op.key for op in written}:
                    found[table, key].append(_read_of(read, key, held_by(kind, read.content, key)))
    return found


def _read_of(read: Read, key: str, held: tuple[int, ...]) -> Call:
    text = f"{read.process}'s read of {key}={pack(held) or 'nothing'} on {read.cluster}"
    return Call(None, held, read.invoked_s, read.completed_s, text)


def _linearizable(run: Run) -> Iterator[Violation]:
    for (table, key), calls in calls_by_key(run).items():
        answer = search(calls)
        if answer.possible is None:
            why = f"{table} {key}: given up after {answer.steps} steps, {len(calls)} operations"
            yield Violation(Wrong.UNDECIDED, why)
        elif not answer.possible:
            yield Violation(Wrong.LINEAR, f"{table}: {contradiction(calls)}")


# -- with the log --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A read and the known facts about it; all numbers are numbers of records of the log."""

    read: Read
    oldest: int
    newest: float
    """The greatest number of records that it can show; -1 if no number explains its content."""
    log_end: int
    """The least number of records in the log when the read began …"""
    log_end_by: str
    """… and the reason."""
    own: int
    """The number of records that cover its client's earlier writes and reads …"""
    own_by: str
    """… because of this."""

    @property
    def behind(self) -> float:
        """The least number of records that it lacks of those in the log when it began."""
        return max(0, self.log_end - self.newest)

    def violations(self) -> Iterator[Violation]:
        """Yield the violations of the read."""
        read = self.read
        place = f"{read.table} on {read.cluster}, {read}"
        if self.newest < 0:
            held = {key: pack(values) for key, values in read.content.items()}
            yield Violation(Wrong.ORDER, f"{place}: no beginning of the log makes it {held}")
            return
        if read.after_offset is not None and read.after_offset < self.oldest:
            yield Violation(
                Wrong.LEVEL,
                f"{place}: its token is {read.after_offset}, but it shows the write at offset "
                f"{self.oldest - 1}",
            )
        if read.level in (Level.LINEARIZABLE, Level.BOUNDED) and self.behind > self._lag_max:
            yield Violation(
                Wrong.LEVEL,
                f"{place}: it shows {self.newest} of the log's records, though before it began "
                f"there were {self.log_end}: {self.log_end_by}",
            )
        if read.level is not Level.ANY and self.newest < self.own:
            yield Violation(
                Wrong.LEVEL,
                f"{place}: it shows {self.newest} of the log's records, but its client had written "
                f"or seen {self.own} (token {read.token}): {self.own_by}",
            )

    @property
    def _lag_max(self) -> int:
        return self.read.lag_max if self.read.level is Level.BOUNDED else 0


def judged_reads(run: Run) -> Iterator[Judged]:
    """Yield every read with the number of records that it shows, and that it had to show."""
    if run.log is None:
        return
    first: dict[str, int] = {}
    for offset, request_id in run.log:
        first.setdefault(request_id, offset)
    logs = {
        table: TableLog(ops, first) for table, ops in _by_table(run.ops).items() if has_keys(ops)
    }
    known = [(read, _shown(logs[read.table], read)) for read in run.reads if read.table in logs]
    ring, own = _Known(), _OfClients()
    for op in run.ops:
        if op.outcome is Outcome.ACK and op.offset is not None:
            for one in (ring, own.of(op)):
                one.add(op.completed_s, op.offset + 1, str(op))
    for read, (oldest, newest) in known:
        if newest >= 0:
            for one in (ring, own.of(read)):
                one.add(read.completed_s, oldest, str(read))
    for read, (oldest, newest) in known:
        yield Judged(read, oldest, newest, *ring.before(read.invoked_s), *own.before(read))


def _shown(log: TableLog, read: Read) -> tuple[int, float]:
    spans = log.shown_by(read)
    return (spans[0][0], spans[-1][1]) if spans else (0, -1)


class _Known:
    """The known numbers of records, and the times at which they became known."""

    def __init__(self) -> None:
        self._added: list[tuple[float, int, str]] = []
        self._times: list[float] = []
        self._greatest: list[tuple[int, str]] = []

    def add(self, at_s: float, records: int, by: str) -> None:
        """Add that this number became known at this time."""
        self._added.append((at_s, records, by))

    def before(self, at_s: float) -> tuple[int, str]:
        """Return the greatest number that was known before this time, and its reason."""
        if len(self._times) < len(self._added):
            self._sum_up()
        place = bisect_left(self._times, at_s)
        return self._greatest[place - 1] if place else (0, "")

    def _sum_up(self) -> None:
        self._times, self._greatest = [], []
        greatest = (0, "")
        for at_s, records, by in sorted(self._added):
            greatest = max(greatest, (records, by), key=lambda known: known[0])
            self._times.append(at_s)
            self._greatest.append(greatest)


class _OfClients:
    """The writes and reads of each client, by cluster and table.

    A cluster's later reads of a table show at least what its earlier ones did, but it may apply
    concurrent operations on other tables in another order than the log's. So the knowledge of a
    client from one cluster counts there for the same table only, and on all other clusters for
    every table. The cluster that acknowledged a PySpark program's write is not known: it may be
    any.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, str], _Known]] = defaultdict(dict)

    def of(self, source: Op | Read) -> _Known:
        """Return the knowledge that this adds to."""
        known = self._known[source.process]
        return known.setdefault((source.cluster, source.table), _Known())

    def before(self, read: Read) -> tuple[int, str]:
        """Return the greatest number that a read must show, and the reason."""
        counted = [
            known.before(read.invoked_s)
            for (cluster, table), known in self._known[read.process].items()
            if cluster not in ("", read.cluster) or table == read.table
        ]
        return max(counted, key=lambda known: known[0], default=(0, ""))


def _by_table(found: Iterable[_T]) -> Mapping[str, Sequence[_T]]:
    tables: dict[str, list[_T]] = defaultdict(list)
    for each in found:
        tables[each.table].append(each)
    return tables
