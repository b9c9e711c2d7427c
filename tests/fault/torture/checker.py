"""Finds the broken promises in a history. Values in, values out.

The clients' own knowledge is checked first (`tables`): an acknowledged write is there once, a
failed one is not, an unknown one is there or not, wholly, and the same everywhere; the order of
acknowledged writes is kept. Independently, the log determines the content of each table (`replay`):
its operations, one after another, the first of each request id except the stale ones
(`haproc.replicate.log_state.definitions`). And no read was impossible (`sightings`), or older than
its level allows (`levels`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.fault.torture.history import Content, Final, Op, Outcome, Run, Verb, pack
from tests.fault.torture.levels import check_levels
from tests.fault.torture.replay import kind_of, normal, replayed
from tests.fault.torture.sightings import check_reads
from tests.fault.torture.tables import check_table
from tests.fault.torture.violations import Violation, Wrong


def check(run: Run) -> list[Violation]:
    """Return all violations, the gravest first."""
    tables: dict[str, list[Op]] = defaultdict(list)
    for op in run.ops:
        tables[op.table].append(op)
    found = [
        *_check_outcomes(run.ops),
        *_check_offsets(run.ops),
        *_check_log(run),
        *_check_events(run.events),
        *_check_differences(run.finals, tables),
        *check_reads(run),
        *check_levels(run),
    ]
    for final in run.finals:
        found += _check_position(final, run.ops)
        for table, ops in tables.items():
            if table in final.tables:
                found += check_table(table, ops, final)
                found += _check_replay(run, table, ops, final)
    order = list(Wrong)
    return sorted(dict.fromkeys(found), key=lambda violation: order.index(violation.wrong))


def _check_outcomes(ops: Sequence[Op]) -> Iterator[Violation]:
    for op in ops:
        if op.verb is Verb.WRONG and op.outcome is Outcome.ACK:
            yield Violation(Wrong.REFUSED, f"a wrong statement was accepted: {op}")
        taken_back = op.process.startswith("revoking") and "HAPROC_REVOKED" in op.error
        right = op.verb is not Verb.WRONG and not taken_back
        if right and op.outcome is Outcome.REJECTED:
            yield Violation(Wrong.REFUSED, f"a right statement was rejected: {op}: {op.error}")


def _check_offsets(ops: Sequence[Op]) -> Iterator[Violation]:
    """Acknowledged writes have different offsets in the log, in the order of real time."""
    known = [op for op in ops if op.outcome is Outcome.ACK and op.offset is not None]
    at: dict[int | None, Op] = {}
    for op in known:
        if (other := at.setdefault(op.offset, op)) is not op:
            yield Violation(Wrong.LOST, f"two writes have one place in the log: {other} and {op}")
    ended = sorted(known, key=lambda op: op.completed_s)
    last: Op | None = None
    position = 0
    for op in sorted(known, key=lambda op: op.invoked_s):
        while ended[position].completed_s < op.invoked_s:
            done = ended[position]
            if last is None or _offset(done) > _offset(last):
                last = done
            position += 1
        if last is not None and _offset(last) > _offset(op):
            yield Violation(
                Wrong.ORDER, f"{op} was asked for after {last} was acknowledged, but stands before"
            )


def _offset(op: Op) -> int:
    return -1 if op.offset is None else op.offset


def _first_offsets(log: Sequence[tuple[int, str]]) -> Mapping[str, int]:
    first: dict[str, int] = {}
    for offset, request_id in log:
        first.setdefault(request_id, offset)
    return first


def _check_log(run: Run) -> Iterator[Violation]:
    if run.log is None:
        return
    first = _first_offsets(run.log)
    for op in run.ops:
        if op.outcome is Outcome.ACK and op.id not in first:
            yield Violation(Wrong.LOST, f"{op} is not in the log")
        elif op.outcome is Outcome.ACK and op.offset is not None and first[op.id] != op.offset:
            yield Violation(
                Wrong.ORDER, f"{op}, but the first of its request id is at {first[op.id]}"
            )
        elif op.outcome is Outcome.NOT_SENT and op.id in first:
            yield Violation(Wrong.GHOST, f"{op} is in the log at {first[op.id]}")


def _check_events(events: Sequence[Mapping[str, object]]) -> Iterator[Violation]:
    for event in events:
        if event["type"] == "program-error" and not event["given_up"]:
            yield Violation(
                Wrong.ERROR,
                f"{event['process']} saw at {event['t']} s, {event['took_s']} s after it had asked "
                f"for {event['what']}: {event['error']}",
            )
        if event["type"] == "session" and not event["ok"]:
            yield Violation(
                Wrong.SESSION, f"{event['process']}'s at {event['t']} s: {event['found']}"
            )
        if event["type"] == "ended":
            yield Violation(
                Wrong.ENDED,
                f"{event['target']} {event['name']} ended by itself at {event['t']} s: "
                f"{event.get('log', '')}",
            )
        if event["type"] == "settled" and not event["ok"]:
            yield Violation(Wrong.UNSETTLED, f"after all faults: {event['status']}")


def _check_differences(
    finals: Sequence[Final], tables: Mapping[str, Sequence[Op]]
) -> Iterator[Violation]:
    if not finals:
        return
    first = finals[0]
    for other in finals[1:]:
        for table in sorted(first.tables.keys() | other.tables.keys()):
            kind = kind_of(tables.get(table, ()))
            mine = normal(kind, first.tables.get(table))
            theirs = normal(kind, other.tables.get(table))
            if mine != theirs:
                yield Violation(
                    Wrong.DIFFERENT,
                    f"{table} on {first.cluster} and {other.cluster}: {_difference(mine, theirs)}",
                )
        for table in sorted(first.checksums.keys() | other.checksums.keys()):
            if first.checksums.get(table) != other.checksums.get(table):
                yield Violation(
                    Wrong.DIFFERENT,
                    f"{table} has another checksum on {first.cluster} than on {other.cluster}: "
                    f"{first.checksums.get(table)}, {other.checksums.get(table)}",
                )


def _difference(mine: Content | None, theirs: Content | None) -> str:
    """Describe the difference between two contents."""
    if mine is None or theirs is None:
        return "only one has it"
    parts = []
    for key in sorted(mine.keys() | theirs.keys()):
        one, two = mine.get(key, ()), theirs.get(key, ())
        if one != two:
            only = sorted(set(one) - set(two)), sorted(set(two) - set(one))
            shown = [pack(each[:10]) or "nothing" for each in only]
            parts.append(
                f"{key!r} has {len(one)} and {len(two)} values, "
                f"only the first {shown[0]}, only the second {shown[1]}"
            )
    return "; ".join(parts)


def _check_position(final: Final, ops: Sequence[Op]) -> Iterator[Violation]:
    position = final.position
    if position is None:
        return
    if position.low > position.log_end or any(o >= position.log_end for o in position.done):
        yield Violation(
            Wrong.CURSOR,
            f"{final.cluster}'s cursor is at {position.low}, beyond the log's end at "
            f"{position.log_end}",
        )
    for op in ops:
        if op.offset is not None and op.offset >= position.log_end:
            yield Violation(
                Wrong.LOST, f"{op} was acknowledged, but the log ends at {position.log_end}"
            )


def _check_replay(run: Run, table: str, ops: Sequence[Op], final: Final) -> Iterator[Violation]:
    """Compare a table with the result of the log's operations."""
    if run.log is None:
        return
    first = _first_offsets(run.log)
    counted = [op for op in ops if op.id in first and op.verb is not Verb.WRONG]
    counted = [op for op in counted if op.outcome is not Outcome.REJECTED]
    counted.sort(key=lambda op: first[op.id])
    kind = kind_of(ops)
    created = any(op.verb is Verb.CREATE for op in ops)
    expected = normal(kind, replayed(counted, there=not created))
    found = normal(kind, final.tables[table])
    if expected != found:
        yield Violation(
            Wrong.REPLAY,
            f"{table}: the log makes it differ from {final.cluster}'s: "
            f"{_difference(expected, found)}",
        )
