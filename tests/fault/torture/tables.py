"""Compares a table at the end with the answers that its clients received, without the log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.fault.torture.history import COLUMNS, Content, Final, Op, Outcome, Verb, pack
from tests.fault.torture.replay import TableKind, kind_of
from tests.fault.torture.violations import Violation, Wrong

_SHOWN_MAX = 5
_OVERWRITES = frozenset({Verb.PUT, Verb.UPDATE, Verb.DELETE})


def check_table(table: str, ops: Sequence[Op], final: Final) -> Iterator[Violation]:
    """Judge one table on one cluster."""
    where = f"{table} on {final.cluster}"
    content = final.tables[table]
    yield from _existence(where, ops, content)
    if content is None:
        return
    kind = kind_of(ops)
    if kind is TableKind.REGISTER:
        yield from _register_ghosts(where, ops, content)
        yield from _registers(where, ops, content)
        return
    yield from _elements(where, ops, content)
    if kind is TableKind.LIST:
        yield from _lists(where, ops, content)


def _existence(where: str, ops: Sequence[Op], content: Content | None) -> Iterator[Violation]:
    creates = [op for op in ops if op.verb is Verb.CREATE]
    drops = [op for op in ops if op.verb is Verb.DROP and not op.outcome.failed]
    if content is None:
        if not drops and not creates:
            yield Violation(Wrong.LOST, f"{where} is not there, and nobody dropped it")
        elif not drops and creates[0].outcome is Outcome.ACK:
            yield Violation(Wrong.LOST, f"{where} is not there after {creates[0]}")
        return
    if creates and creates[0].outcome.failed:
        yield Violation(Wrong.GHOST, f"{where} is there after {creates[0]}")
    for op in drops:
        if op.outcome is Outcome.ACK:
            yield Violation(Wrong.GHOST, f"{where} is there after {op}")


def written(ops: Sequence[Op]) -> Mapping[tuple[str, int], Op]:
    """Return the writer of each value, by key and value."""
    found: dict[tuple[str, int], Op] = {}
    for op in ops:
        if op.verb is Verb.ADD_COLUMN:
            found.update({(COLUMNS, value): op for value in op.values})
        elif op.verb is not Verb.WRONG:
            found.update({(op.key, value): op for value in op.values})
    return found


def ghosts(
    where: str, writers: Mapping[tuple[str, int], Op], content: Content
) -> Iterator[Violation]:
    """Yield values that nobody wrote, or whose write certainly failed."""
    for key, values in content.items():
        for value in dict.fromkeys(values):
            op = writers.get((key, value))
            name = f"{key}={value}" if key else str(value)
            if op is None:
                yield Violation(Wrong.GHOST, f"{where}: nobody ever wrote {name}")
            elif op.outcome.failed:
                yield Violation(Wrong.GHOST, f"{where}: {name} is there, though it failed: {op}")


def _elements(where: str, ops: Sequence[Op], content: Content) -> Iterator[Violation]:
    """Every element once: for sets, lists and columns."""
    writers = written(ops)
    yield from ghosts(where, writers, content)
    counts = {key: Counter(values) for key, values in content.items()}
    for key, counted in counts.items():
        for value, count in counted.items():
            if count > 1:
                name = f"{key}={value}" if key else str(value)
                by = writers.get((key, value), "nobody")
                yield Violation(Wrong.DOUBLED, f"{where}: {name} is there {count} times, by {by}")
    for op in {op.id: op for op in writers.values()}.values():
        key = COLUMNS if op.verb is Verb.ADD_COLUMN else op.key
        missing = [value for value in op.values if value not in counts.get(key, ())]
        if not missing:
            continue
        shown = pack(missing[:_SHOWN_MAX])
        if op.outcome is Outcome.ACK:
            yield Violation(Wrong.LOST, f"{where}: {shown} of {op} is missing")
        elif len(missing) < len(op.values):
            yield Violation(Wrong.TORN, f"{where}: {shown} of {op} is missing, the rest is there")


def _lists(where: str, ops: Sequence[Op], content: Content) -> Iterator[Violation]:
    """An element acknowledged before another was sent comes before it."""
    writers = written(ops)
    for key, values in content.items():
        first_done: Op | None = None
        for value in reversed(values):
            op = writers.get((key, value))
            if op is None:
                continue
            if first_done is not None and first_done.completed_s < op.invoked_s:
                yield Violation(
                    Wrong.ORDER,
                    f"{where}: {op} stands before {first_done}, which was acknowledged "
                    f"{op.invoked_s - first_done.completed_s:.2f} s before it was asked for",
                )
            if first_done is None or op.completed_s < first_done.completed_s:
                first_done = op


def _register_ghosts(where: str, ops: Sequence[Op], content: Content) -> Iterator[Violation]:
    yield from ghosts(where, written(ops), content)
    inserted = {op.key for op in ops if op.verb is Verb.INSERT}
    for key, values in content.items():
        if len(values) > 1 and key not in inserted:
            yield Violation(Wrong.DOUBLED, f"{where}: {key} has several rows: {values}")


def _registers(where: str, ops: Sequence[Op], content: Content) -> Iterator[Violation]:
    """The last value is one that no acknowledged write overwrote."""
    for key in sorted({op.key for op in ops if op.verb in _OVERWRITES}):
        mine = [op for op in ops if op.key == key and not op.outcome.failed]
        values = content.get(key, ())
        for value in values:
            writer = next((op for op in mine if value in op.values), None)
            after = writer and _overwriting(writer, mine, _OVERWRITES)
            if after:
                yield Violation(
                    Wrong.LOST,
                    f"{where}: {key} is {value} by {writer}, which {after} had overwritten",
                )
        if not values:
            yield from _empty_register(where, key, mine)


def _empty_register(where: str, key: str, mine: Sequence[Op]) -> Iterator[Violation]:
    """A key without a row was deleted after the last write that makes one, or never written."""
    makers = [op for op in mine if op.verb in (Verb.PUT, Verb.INSERT)]
    sure = [op for op in makers if op.outcome is Outcome.ACK]
    deletes = [op for op in mine if op.verb is Verb.DELETE]
    last = max(sure, key=lambda op: op.invoked_s, default=None)
    if last is not None and all(op.completed_s < last.invoked_s for op in deletes):
        yield Violation(Wrong.LOST, f"{where}: {key} has no row, though nothing deleted {last}")


def _overwriting(writer: Op, ops: Sequence[Op], verbs: frozenset[Verb]) -> Op | None:
    """Return an acknowledged write that began after this one had ended."""
    if writer.completed_s == math.inf:
        return None
    later = (op for op in ops if op.verb in verbs and op.outcome is Outcome.ACK)
    return next((op for op in later if op.invoked_s > writer.completed_s), None)
