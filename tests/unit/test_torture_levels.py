"""Tests of read levels in the checker: reads too old for their level are found, and no others."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fault.torture.checker import check
from tests.fault.torture.figures import figures
from tests.fault.torture.history import Content, Level, Op, Outcome, Read, Run, Verb
from tests.fault.torture.levels import calls_by_key, judged_reads
from tests.fault.torture.violations import Violation, Wrong


def op(number: int, verb: Verb, table: str = "reg", key: str = "k", process: str = "w") -> Op:
    """Return an acknowledged write with its number as offset, value and second."""
    values = () if verb is Verb.DELETE else (number,)
    times = {"invoked_s": float(number), "completed_s": number + 0.5}
    known = {"outcome": Outcome.ACK, "cluster": "a", "offset": number}
    return Op(f"r{number}", process, verb, table, key, values, **times, **known)  # type: ignore[arg-type]


OPS = (
    op(1, Verb.PUT),
    op(2, Verb.PUT, key="l"),
    op(3, Verb.UPDATE),
    op(4, Verb.INSERT, "set", ""),
    op(5, Verb.UPDATE, key="l"),
    op(6, Verb.APPEND, "list"),
    op(7, Verb.APPEND, "list"),
    op(8, Verb.DELETE, key="l"),
    op(9, Verb.PUT, key="l"),
    op(10, Verb.INSERT, "set", ""),
)
OTHER_CLUSTER_S = (2.4, 21, 31)
"""Reads at these times are on another cluster."""
NOW: Content = {"k": (3,), "l": (9,)}


def read(
    content: Content,
    at_s: float = 20.0,
    level: Level = Level.ANY,
    table: str = "reg",
    **more: object,
) -> Read:
    made = Read(
        "r", table, "c" if at_s in OTHER_CLUSTER_S else "b", at_s, at_s + 0.1, content, level=level
    )
    return replace(made, **more)  # type: ignore[arg-type]


def bounded(content: Content, lag_max: int, at_s: float = 20.0) -> Read:
    return read(content, at_s, Level.BOUNDED, lag_max=lag_max)


def linear(content: Content, at_s: float = 20.0, table: str = "reg") -> Read:
    return read(content, at_s, Level.LINEARIZABLE, table)


def session(content: Content, at_s: float = 20.0, process: str = "r", table: str = "reg") -> Read:
    return read(content, at_s, Level.SESSION, table, process=process)


def run(reads: Sequence[Read], ops: Sequence[Op] = OPS) -> Run:
    log = sorted((each.offset, each.id) for each in ops if each.offset is not None)
    return Run(tuple(ops), tuple(reads), (), tuple(log))


def violations(*reads: Read, ops: Sequence[Op] = OPS) -> list[Violation]:
    return check(run(reads, ops))


@pytest.mark.parametrize(
    "reads",
    [
        [linear(NOW)],
        [linear({}, 0.2), linear({"k": (1,)}, 1.7), linear({"k": (1,), "l": (2,)}, 2.6)],
        # A write under way may be there or not.
        [linear({"k": (1,), "l": (2,)}, 3.2), linear({"k": (3,), "l": (2,)}, 3.35)],
        [linear({"k": (6, 7)}, table="list"), linear({"k": (6,)}, 7.2, "list")],
        # Two records lack: those at offsets 9 and 10, and 8, 9 and 10 show in what is missing.
        [bounded({"k": (3,)}, 2)],
        [bounded({"k": (3,), "l": (5,)}, 3)],
        [bounded({"k": (3,), "l": (2,)}, 6), bounded({"k": (1,), "l": (2,)}, 8)],
        [session({"k": (1,)}), session({"k": (1,), "l": (2,)}, 21)],
        # Only what one's own client saw counts, and reads at any level promise nothing.
        [session({"k": (3,), "l": (2,)}), session({"k": (1,)}, 21, "other")],
        [session({"k": (3,), "l": (2,)}), read({"k": (1,)}, 21.0)],
        # On one cluster, what was done to another table may be there first.
        [session({"k": (6, 7)}, 20.0, table="list"), session({"k": (1,)}, 20.5)],
        # The empty key comes twice: before the first write, and after the DELETE.
        [session({"k": (3,), "l": (5,)}), session({"k": (3,)}, 21)],
    ],
)
def test_levels_accept_fresh_enough_reads(reads: list[Read]) -> None:
    assert violations(*reads) == []


@pytest.mark.parametrize(
    ("reads", "wrong", "says"),
    [
        (
            [linear({"k": (3,), "l": (5,)})],
            {Wrong.LINEAR, Wrong.LEVEL},
            "r's linearizable read at 20.1 s: it shows 8 of the log's records, though before it "
            "began there were 11: w's insert (r10, ack by a at offset 10)",
        ),
        (
            [linear({"k": (1,), "l": (9,)})],
            {Wrong.LINEAR, Wrong.ORDER},
            "no beginning of the log makes it {'k': '1', 'l': '9'}",
        ),
        (
            [linear({"k": (6,)}, table="list")],
            {Wrong.LINEAR, Wrong.LEVEL},
            "r's read of k=6 on b: it is stale: w's append k=7 (r7, ack by a at offset 7) had "
            "taken effect 12.50 s before it began",
        ),
        ([bounded({"k": (3,)}, 1)], {Wrong.LEVEL}, "bounded by 1 read at 20.1 s: it shows 9 of"),
        ([bounded({"k": (3,), "l": (2,)}, 5)], {Wrong.LEVEL}, "shows 5 of the log's records"),
        (
            # What somebody else was shown was in the log, too.
            [read({"k": (3,), "l": (2,)}, 2.2), bounded({"k": (1,)}, 0, 2.4)],
            {Wrong.LEVEL},
            "there were 4: r's read at 2.3 s",
        ),
        (
            [session({"k": (3,), "l": (2,)}), session({"k": (1,), "l": (2,)}, 21)],
            {Wrong.LEVEL},
            "it shows 3 of the log's records, but its client had written or seen 4 (token 0): r's "
            "session read at 20.1 s",
        ),
        (
            [read({"k": (3,), "l": (2,)}), session({"k": (1,), "l": (2,)}, 21)],
            {Wrong.LEVEL},
            "had written or seen 4 (token 0): r's read at 20.1 s",
        ),
        (
            [session({"k": (6, 7)}, 20.0, table="list"), session({"k": (1,)}, 21)],
            {Wrong.LEVEL},
            "had written or seen 8 (token 0): r's session read at 20.1 s",
        ),
        (
            [session({"k": (1,)}, 10.6, "w")],
            {Wrong.LEVEL},
            "it shows 2 of the log's records, but its client had written or seen 11 (token 0): w's",
        ),
        (
            [read(NOW, after_offset=9)],
            {Wrong.LEVEL},
            "its token is 9, but it shows the write at offset 9",
        ),
        ([read({"k": (1,), "l": (9,)})], {Wrong.ORDER}, "no beginning of the log makes it"),
        ([read({"k": (3,), "x": (3,)})], {Wrong.GHOST, Wrong.ORDER}, "no beginning of the log"),
    ],
)
def test_levels_find_a_planted_old_read(reads: list[Read], wrong: set[Wrong], says: str) -> None:
    ops = [*OPS]
    if reads[0].invoked_s == 2.2:  # seen before it was acknowledged
        ops[2] = replace(ops[2], invoked_s=2.1)
    found = violations(*reads, ops=ops)
    assert {each.wrong for each in found} == wrong, found
    assert any(says in str(each) for each in found), found


def test_levels_count_an_unknown_write_in_the_log_once_it_was_seen() -> None:
    late = replace(op(11, Verb.PUT), outcome=Outcome.UNKNOWN, completed_s=math.inf)
    ops = (*OPS, late)
    seen = linear({"k": (11,), "l": (9,)}, 30)
    assert violations(linear(NOW, 20), seen, linear(seen.content, 31), ops=ops) == []
    found = violations(seen, linear(NOW, 31), ops=ops)
    assert {each.wrong for each in found} == {Wrong.LINEAR, Wrong.LEVEL}


def test_levels_without_the_log_are_judged_by_the_clients_only() -> None:
    history = replace(run([linear({"k": (1,), "l": (9,)})]), log=None)
    assert {each.wrong for each in check(history)} == {Wrong.LINEAR}
    assert [*judged_reads(history)] == []


def test_calls_by_key_contains_linearizable_reads_and_all_writes_that_may_count() -> None:
    failed = replace(op(12, Verb.PUT), outcome=Outcome.REJECTED)
    history = run([linear(NOW), session(NOW), read(NOW)], (*OPS, failed))
    calls = calls_by_key(history)
    assert {key: len(each) for key, each in calls.items()} == {
        ("reg", "k"): 3,
        ("reg", "l"): 5,
        ("list", "k"): 2,
    }


def test_figures_show_levels_and_failovers() -> None:
    moved = bounded({"k": (3,)}, 2)
    moved = replace(moved, sent_to="a", answered_by="b")
    failed = {"type": "read-failed", "t": 9.0, "invoked": 8.0, "level": "bounded", "lag_max": 2}
    history = replace(run([linear(NOW), moved, read({"k": (1,)})]), events=(failed,))
    found = figures(history)
    assert found["failovers"] == {"writes": 0, "reads": 1}
    assert {name: each["behind_max"] for name, each in found["levels"].items()} == {
        "any": 9,
        "bounded by 2": 2,
        "linearizable": 0,
    }
    assert found["levels"]["bounded by 2"]["failed"] == 1
    assert found["levels"]["bounded by 2"]["failovers"] == 1


# -- invented runs -------------------------------------------------------------------------------


def invented(source: random.Random, planted: bool) -> tuple[Run, bool]:
    """Return a run whose reads show as much as they must, and whether one shows too little.

    Writes take their offsets at one moment between begin and end; a read shows any prefix of the
    log that its level allows.
    """
    writes = []
    for number in range(1, source.randint(2, 30)):
        begun = source.uniform(0, 20)
        moment, ended = begun + source.random(), begun + 1 + source.random()
        writes.append((moment, replace(op(number, Verb.PUT), invoked_s=begun, completed_s=ended)))
    writes.sort(key=lambda write: write[0])
    ops = [replace(each, offset=3 * place) for place, (_, each) in enumerate(writes)]
    offsets = [3 * place for place in range(len(ops))]
    reads: list[Any] = []
    seen, spoiled = 0, False
    for number in range(10):
        begun = 2.5 * number + source.random()
        acknowledged = [each.offset or 0 for each in ops if each.completed_s < begun]
        shown_s = [read.after_offset or 0 for read in reads]
        log_end = max([0, *(offset + 1 for offset in acknowledged), *shown_s])
        most = max([log_end, *(3 * at + 1 for at, (m, _) in enumerate(writes) if m < begun)])
        level, lag_max = source.choice([*Level]), source.randrange(8)
        least = {Level.LINEARIZABLE: log_end, Level.BOUNDED: log_end - lag_max}.get(level, 0)
        least = max(least, seen) if level is not Level.ANY else 0
        count = source.randint(least, max(most, least))
        if planted and least > 0 and not spoiled:
            count = source.randrange(least)
            spoiled = any(count <= offset < least for offset in offsets)
        held = [each for each in ops if (each.offset or 0) < count]
        content: Content = {"k": held[-1].values} if held else {}
        oldest = (held[-1].offset or 0) + 1 if held else 0
        made = read(content, begun, level, lag_max=lag_max, cluster=f"c{number}")
        reads.append(replace(made, after_offset=oldest))
        seen = max(seen, oldest)
    return run(reads, ops), spoiled


@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_levels_accept_random_reads_that_are_fresh_enough(seed: int) -> None:
    history, _ = invented(random.Random(seed), planted=False)
    found = [each for judged in judged_reads(history) for each in judged.violations()]
    assert found == []


@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_levels_find_a_random_read_that_is_too_old(seed: int) -> None:
    history, spoiled = invented(random.Random(seed), planted=True)
    found = [each for judged in judged_reads(history) for each in judged.violations()]
    assert bool(found) is spoiled, found
