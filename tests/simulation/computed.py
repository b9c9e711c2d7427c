"""Writes whose rows are computed at their place in the order, and what they must have seen.

*gather* copies all ids that there are, *tally* counts what it wrote before, *make* creates a table
from a query. Each draws a number by chance too, which is another one each time that a query runs:
clusters that did not all take the same rows differ by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dmq import decode
from haproc.classify.model import Kind, OperationClass
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.rows import Passed, QueryWrite, Rows
from tests.simulation.violations import Problem, Violation

if TYPE_CHECKING:
    from tests.simulation.scenario import Attempted

SETUP = ("CREATE TABLE gathered (id, x, n)", "CREATE TABLE tallies (id, n, m)")
MIX = ("set",) * 6 + ("gather",) * 4 + ("tally",) * 4 + ("make", "make", "unmake")
TABLES = 3


def computed(
    op_id: str, kind: Kind, head: str, query: str, origin: str, reads: str, writes: str
) -> Operation:
    """Return a write whose rows are computed at its place, as the service would make it."""
    synchronous = kind is Kind.CREATE_TABLE_AS
    return Operation(
        op_id,
        OperationClass.SYNCHRONOUS if synchronous else OperationClass.ASYNCHRONOUS,
        kind,
        origin,
        op_id,
        QueryWrite(head + query, len(head)),
        reads=frozenset({reads}),
        writes=frozenset({writes}),
    )


def gather(op_id: str, origin: str) -> Operation:
    """Return a write that copies all ids that there are."""
    query = f"SELECT '{op_id}' AS id, id AS x, chance() AS n FROM ids"
    return computed(op_id, Kind.INSERT, "INSERT INTO gathered ", query, origin, "ids", "gathered")


def tally(op_id: str, origin: str) -> Operation:
    """Return a write that counts what its like wrote before."""
    query = f"SELECT '{op_id}' AS id, count(*) AS n, chance() AS m FROM tallies"
    return computed(op_id, Kind.INSERT, "INSERT INTO tallies ", query, origin, "tallies", "tallies")


def make(op_id: str, origin: str, table: str) -> Operation:
    """Return a CREATE TABLE AS."""
    query = "SELECT count(*) AS n, chance() AS m FROM ids"
    head = f"CREATE TABLE {table} AS "
    return computed(op_id, Kind.CREATE_TABLE_AS, head, query, origin, "ids", table)


def first_offsets(log: Iterable[bytes]) -> dict[str, int]:
    """Return where each operation stands first."""
    offsets: dict[str, int] = {}
    for offset, data in enumerate(log):
        message = from_record(decode(data))
        if isinstance(message, Operation):
            offsets.setdefault(message.id, offset)
    return offsets


def check_log(log: Iterable[bytes]) -> Iterator[Problem]:
    """Yield what the log says of the rows of operations that have none to be computed."""
    plain: dict[int, str] = {}
    for offset, data in enumerate(log):
        match from_record(decode(data)):
            case Operation(computed=False, id=op_id):
                plain[offset] = op_id
            case Rows(offset=at, by=by) | Passed(offset=at, by=by) if at in plain:
                text = f"{by} tells of rows of {plain[at]}, which has none to be computed"
                yield Problem(Violation.MISPLACED, text)
            case _:
                pass


def check(
    name: str,
    dump: dict[str, list[tuple[object, ...]]],
    offsets: dict[str, int],
    attempts: Sequence[Attempted],
) -> Iterator[Problem]:
    """Yield what is wrong with computed writes on a cluster."""
    ids = [str(row[0]) for row in dump.get("ids", [])]
    seen = defaultdict[str, list[str]](list)
    for op_id, x, _ in dump.get("gathered", []):
        seen[str(op_id)].append(str(x))
    for op_id, xs in seen.items():
        before = sorted(each for each in ids if offsets[each] < offsets[op_id])
        if sorted({*xs}) != before:
            text = f"{op_id} saw {sorted(xs)} of {before} on {name}"
            yield Problem(Violation.MISPLACED, text)
        elif sorted(xs) != before:
            yield Problem(Violation.DOUBLED, f"{op_id} has rows more than once on {name}")
    yield from _missed(name, ids, seen, attempts)
    counts = {str(row[0]): row[1] for row in dump.get("tallies", [])}
    order = sorted(counts, key=lambda op_id: offsets[op_id])
    if [counts[op_id] for op_id in order] != list(range(len(order))):
        text = f"tallies count {[(o, counts[o]) for o in order]} on {name}"
        yield Problem(Violation.MISPLACED, text)
    times = Counter(str(row[0]) for row in dump.get("tallies", []))
    for attempt in attempts:
        if attempt.what == "tally":
            yield from of_attempt(name, attempt, times[attempt.id])


def _missed(
    name: str, ids: list[str], seen: dict[str, list[str]], attempts: Sequence[Attempted]
) -> Iterator[Problem]:
    """Hold computed writes against what had been acknowledged before they were sent."""
    known = [a for a in attempts if a.what == "set" and a.acknowledged and a.id in ids]
    for attempt in attempts:
        if attempt.what != "gather":
            continue
        xs = seen.get(attempt.id, [])
        if attempt.acknowledged is False and xs:
            yield Problem(Violation.REJECTED, f"{attempt.id} was rejected, and is on {name}")
        early = {a.id for a in known if a.ended_at < attempt.started_at}
        if attempt.acknowledged and (missed := early - {*xs}):
            what = Violation.MISPLACED if xs else Violation.LOST
            yield Problem(what, f"{attempt.id} lacks {sorted(missed)} on {name}")


def of_attempt(name: str, attempt: Attempted, count: int) -> Iterator[Problem]:
    """Hold how often a write is on a cluster against what its client was told."""
    if count > 1:
        yield Problem(Violation.DOUBLED, f"{attempt.id} is {count} times on {name}")
    if attempt.acknowledged and count == 0:
        yield Problem(Violation.LOST, f"{attempt.id} was acknowledged, and is not on {name}")
    if attempt.acknowledged is False and count:
        yield Problem(Violation.REJECTED, f"{attempt.id} was rejected, and is on {name}")
