"""Writes whose rows are computed at their place in the order, and the rows that they must see.

*gather* copies all existing ids, *tally* counts its own earlier rows, *make* creates a table from a
query. Each also draws a random number, a new one each time that a query runs: clusters that did not
all take the same rows differ by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from haproc.classify.model import Kind, OperationClass
from haproc.replicate.records.operation import Filler, Message, Operation
from haproc.replicate.records.rows import Passed, QueryWrite, Rows, SessionRef
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
    """Return a write that copies all existing ids."""
    query = f"SELECT '{op_id}' AS id, id AS x, chance() AS n FROM ids"
    return computed(op_id, Kind.INSERT, "INSERT INTO gathered ", query, origin, "ids", "gathered")


def of_session(op_id: str, origin: str, ref: SessionRef | None = None) -> Operation:
    """Return a gather that rests on a session."""
    op = gather(op_id, origin)
    assert isinstance(op.write, QueryWrite)
    return replace(op, write=structs.replace(op.write, of_session=True, session=ref))


def tally(op_id: str, origin: str) -> Operation:
    """Return a write that counts the rows of earlier writes of its kind."""
    query = f"SELECT '{op_id}' AS id, count(*) AS n, chance() AS m FROM tallies"
    return computed(op_id, Kind.INSERT, "INSERT INTO tallies ", query, origin, "tallies", "tallies")


def make(op_id: str, origin: str, table: str) -> Operation:
    """Return a CREATE TABLE AS."""
    query = "SELECT count(*) AS n, chance() AS m FROM ids"
    head = f"CREATE TABLE {table} AS "
    return computed(op_id, Kind.CREATE_TABLE_AS, head, query, origin, "ids", table)


def first_offsets(log: Sequence[Message | Filler]) -> dict[str, int]:
    """Return the first offset of each operation."""
    offsets: dict[str, int] = {}
    for offset, message in enumerate(log):
        if isinstance(message, Operation):
            offsets.setdefault(message.id, offset)
    return offsets


def check_log(log: Sequence[Message | Filler]) -> Iterator[Problem]:
    """Yield the records of computed rows that name an operation without a query."""
    plain: dict[int, str] = {}
    for offset, message in enumerate(log):
        match message:
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
    """Yield the problems of computed writes on a cluster."""
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
    """Compare computed writes with the writes that were acknowledged before they were sent."""
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
    """Compare how often a write is on a cluster with its client's answer."""
    if count > 1:
        yield Problem(Violation.DOUBLED, f"{attempt.id} is {count} times on {name}")
    if attempt.acknowledged and count == 0:
        yield Problem(Violation.LOST, f"{attempt.id} was acknowledged, and is not on {name}")
    if attempt.acknowledged is False and count:
        yield Problem(Violation.REJECTED, f"{attempt.id} was rejected, and is on {name}")
