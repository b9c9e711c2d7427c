"""Tests of the kill harness's checker: it finds planted errors, and accepts every legal history."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fault.torture import history as lines
from tests.fault.torture.checker import check
from tests.fault.torture.figures import figures, shown
from tests.fault.torture.history import (
    COLUMNS,
    Content,
    Final,
    History,
    Level,
    Op,
    Outcome,
    Position,
    Read,
    Run,
    Verb,
    pack,
    unpack,
)
from tests.fault.torture.replay import replayed
from tests.fault.torture.violations import Wrong

CLUSTERS = ("a", "b", "c")
LOG_END = 100


def op(number: int, verb: Verb, table: str, key: str = "", values: Sequence[int] = ()) -> Op:
    """Return an acknowledged write at offset ``number``, sent at that second."""
    return Op(
        id=f"r{number}",
        process="w",
        verb=verb,
        table=table,
        key=key,
        values=tuple(values),
        invoked_s=float(number),
        completed_s=number + 0.5,
        outcome=Outcome.ACK,
        cluster="a",
        offset=number,
        took_s=0.5,
    )


def unsure(op: Op, outcome: Outcome = Outcome.UNKNOWN) -> Op:
    """Return the write with another outcome."""
    ended = math.inf if outcome is Outcome.UNKNOWN else op.completed_s
    return replace(op, outcome=outcome, completed_s=ended, offset=None, cluster="")


OPS = (
    op(1, Verb.INSERT, "set", values=[11]),
    op(2, Verb.INSERT, "set", values=[12, 13]),
    op(3, Verb.APPEND, "list", "k", [21]),
    op(4, Verb.APPEND, "list", "k", [22]),
    op(5, Verb.PUT, "reg", "k", [31]),
    op(6, Verb.UPDATE, "reg", "k", [32]),
    op(7, Verb.CREATE, "d"),
    op(8, Verb.INSERT, "d", values=[41]),
    op(9, Verb.ADD_COLUMN, "d", COLUMNS, [42]),
    op(10, Verb.CREATE, "gone"),
    op(11, Verb.DROP, "gone"),
)
TABLES: Mapping[str, Content | None] = {
    "set": {"": (11, 12, 13)},
    "list": {"k": (21, 22)},
    "reg": {"k": (32,)},
    "d": {"": (41,), COLUMNS: (42,)},
    "gone": None,
}


def final(cluster: str, **tables: Content | None) -> Final:
    """Return a cluster with the right content, except for these tables."""
    held = {**TABLES, **tables}
    return Final(cluster, Position(LOG_END, log_end=LOG_END), held, {"t": "1"})


def run(
    *finals: Final, ops: Sequence[Op] = OPS, reads: Sequence[Read] = (), log: bool = True
) -> Run:
    """Return a history with these final states; other clusters have the right content."""
    given = {each.cluster: each for each in finals}
    ended = tuple(given.get(name) or final(name) for name in CLUSTERS)
    entries = tuple((each.offset, each.id) for each in ops if each.offset is not None)
    return Run(tuple(ops), tuple(reads), ended, entries if log else None)


def everywhere(**tables: Content | None) -> list[Final]:
    """Return all clusters with these tables."""
    return [final(name, **tables) for name in CLUSTERS]


def found(run: Run) -> set[Wrong]:
    return {violation.wrong for violation in check(run)}


def test_checker_accepts_a_legal_history() -> None:
    assert check(run()) == []


@pytest.mark.parametrize(
    ("table", "content", "wrong", "says"),
    [
        ("set", {"": (11, 12)}, Wrong.LOST, "13 of w's insert (r2, ack by a at offset 2)"),
        ("set", {"": (12, 13)}, Wrong.LOST, "11 of w's insert"),
        ("set", {"": (11, 11, 12, 13)}, Wrong.DOUBLED, "11 is there 2 times"),
        ("set", {"": (11, 12, 13, 99)}, Wrong.GHOST, "nobody ever wrote 99"),
        ("set", None, Wrong.LOST, "set on a is not there, and nobody dropped it"),
        ("list", {"k": (22, 21)}, Wrong.ORDER, "stands before"),
        ("list", {"k": (21,)}, Wrong.LOST, "22 of w's append k=22"),
        ("list", {"k": (21, 22, 21)}, Wrong.DOUBLED, "k=21 is there 2 times"),
        ("reg", {"k": (31,)}, Wrong.LOST, "k is 31 by w's put"),
        ("reg", {}, Wrong.LOST, "k has no row, though nothing deleted"),
        ("reg", {"k": (31, 32)}, Wrong.DOUBLED, "k has several rows"),
        ("reg", {"k": (77,)}, Wrong.GHOST, "nobody ever wrote k=77"),
        ("d", None, Wrong.LOST, "d on a is not there after w's create"),
        ("d", {"": (41,), COLUMNS: ()}, Wrong.LOST, "42 of w's add column"),
        ("gone", {}, Wrong.GHOST, "gone on a is there after w's drop"),
    ],
)
@pytest.mark.parametrize("log", [True, False])
def test_checker_finds_an_error_planted_on_all_clusters(
    table: str, content: Content | None, wrong: Wrong, says: str, log: bool
) -> None:
    violations = check(run(*everywhere(**{table: content}), log=log))
    assert any(each.wrong is wrong and says in each.message for each in violations), violations
    assert (Wrong.REPLAY in {each.wrong for each in violations}) is log
    assert Wrong.DIFFERENT not in {each.wrong for each in violations}


def test_checker_finds_a_cluster_without_an_unknown_write_that_the_others_have() -> None:
    ops = (*OPS, unsure(op(12, Verb.INSERT, "set", values=[14])))
    more = {"": (11, 12, 13, 14)}
    (violation,) = check(run(final("b", set=more), final("c", set=more), ops=ops, log=False))[:1]
    assert violation.wrong is Wrong.DIFFERENT
    assert "set on a and b: '' has 3 and 4 values" in violation.message
    assert found(run(*everywhere(set=more), ops=ops, log=False)) == set()
    assert found(run(ops=ops, log=False)) == set()


def test_checker_finds_a_different_checksum() -> None:
    different = replace(final("b"), checksums={"t": "2"})
    assert [str(each) for each in check(run(different))] == [
        "different: t has another checksum on a than on b: 1, 2"
    ]


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.NOT_SENT])
def test_checker_finds_a_failed_write_that_took_effect(outcome: Outcome) -> None:
    ops = (*OPS, unsure(op(12, Verb.INSERT, "set", values=[14]), outcome))
    assert Wrong.GHOST in found(run(*everywhere(set={"": (11, 12, 13, 14)}), ops=ops))


def test_checker_finds_a_torn_unknown_write() -> None:
    ops = (*OPS, unsure(op(12, Verb.INSERT, "set", values=[14, 15])))
    assert found(run(*everywhere(set={"": (11, 12, 13, 14)}), ops=ops, log=False)) == {Wrong.TORN}


def test_checker_finds_a_write_not_sent_but_in_the_log() -> None:
    failed = unsure(op(12, Verb.INSERT, "set", values=[14]), Outcome.NOT_SENT)
    history = run(ops=(*OPS, failed))
    history = replace(history, log=((12, "r12"), *(history.log or ())))
    assert Wrong.GHOST in found(history)


def test_checker_finds_the_missing_effect_of_an_unknown_write_in_the_log() -> None:
    history = run(ops=(*OPS, unsure(op(12, Verb.INSERT, "set", values=[14]))))
    history = replace(history, log=(*(history.log or ()), (12, "r12")))
    assert found(history) == {Wrong.REPLAY}


def test_checker_ignores_a_second_record_of_a_request() -> None:
    history = run()
    assert found(replace(history, log=(*(history.log or ()), (50, "r3")))) == set()


def test_checker_finds_an_acknowledged_write_without_a_record() -> None:
    history = run()
    assert Wrong.LOST in found(replace(history, log=(history.log or ())[1:]))


def test_checker_finds_two_writes_at_one_offset() -> None:
    ops = (replace(OPS[0], offset=2), *OPS[1:])
    assert Wrong.LOST in found(run(ops=ops, log=False))


def test_checker_finds_an_offset_before_that_of_an_earlier_acknowledged_write() -> None:
    ops = (replace(OPS[0], offset=90), *OPS[1:])
    violations = check(run(ops=ops, log=False))
    assert {each.wrong for each in violations} == {Wrong.ORDER}
    assert "was asked for after" in violations[0].message


def test_checker_finds_a_cursor_beyond_the_log() -> None:
    beyond = replace(final("b"), position=Position(LOG_END + 1, log_end=LOG_END))
    assert found(run(beyond)) == {Wrong.CURSOR}


def test_checker_finds_a_write_beyond_the_log() -> None:
    short = replace(final("b"), position=Position(5, log_end=5))
    assert Wrong.LOST in found(run(short))


def test_checker_finds_a_rejected_correct_statement() -> None:
    ops = (*OPS, unsure(op(12, Verb.INSERT, "set", values=[14]), Outcome.REJECTED))
    assert found(run(ops=ops)) == {Wrong.REFUSED}


def test_checker_accepts_a_revoked_statement_only_if_its_sender_revoked_it() -> None:
    rejected = unsure(op(12, Verb.INSERT, "set", values=[14]), Outcome.REJECTED)
    taken_back = replace(rejected, error="HAPROC_REVOKED it was taken back by its sender")
    wanted = replace(taken_back, process="revoking-1")
    assert found(run(ops=(*OPS, wanted))) == set()
    assert found(run(ops=(*OPS, taken_back))) == {Wrong.REFUSED}


def test_checker_finds_an_accepted_wrong_statement() -> None:
    assert Wrong.REFUSED in found(run(ops=(*OPS, op(12, Verb.WRONG, "set", values=[14]))))
    refused = unsure(op(12, Verb.WRONG, "set", values=[14]), Outcome.REJECTED)
    assert found(run(ops=(*OPS, refused))) == set()


def test_checker_reports_events_that_are_findings() -> None:
    events = (
        {"type": "ended", "target": "haproc", "name": "b", "t": 3.0, "log": "why"},
        {"type": "settled", "ok": False, "status": {}},
    )
    assert found(replace(run(), events=events)) == {Wrong.ENDED, Wrong.UNSETTLED}


# -- reads -------------------------------------------------------------------------------------


def read(
    table: str,
    content: Content,
    at_s: float = 20.0,
    cluster: str = "b",
    position: Position | None = None,
) -> Read:
    return Read("r", table, cluster, at_s, at_s + 0.1, content, position)


@pytest.mark.parametrize(
    ("reads", "wrong"),
    [
        ([read("set", {"": (11, 99)})], {Wrong.GHOST}),
        ([read("set", {"": (11, 12)}, at_s=1.7)], {Wrong.GHOST}),
        ([read("set", {"": (11, 11)})], {Wrong.DOUBLED}),
        ([read("set", {"": (11,)}), read("set", {}, 21.0)], {Wrong.STALE}),
        ([read("set", {"": (11,)}, cluster="a")], {Wrong.STALE}),
        ([read("set", {"": (11,)}, position=Position(3))], {Wrong.CURSOR}),
        ([read("set", {"": (11,)}, position=Position(2, frozenset({2})))], {Wrong.CURSOR}),
        ([read("list", {"k": (22,)})], {Wrong.ORDER}),
        ([read("list", {"k": (21,)}), read("list", {}, 21.0)], {Wrong.STALE}),
        ([read("list", {"k": (21,)}, position=Position(5))], {Wrong.CURSOR}),
        ([read("reg", {"k": (32,)}), read("reg", {"k": (31,)}, 21.0)], {Wrong.STALE}),
        ([read("reg", {"k": (31,)}, cluster="a")], {Wrong.STALE}),
        ([read("reg", {"k": (31,)}, position=Position(7))], {Wrong.CURSOR}),
        ([read("reg", {"k": (99,)})], {Wrong.GHOST}),
        # Another cluster may be behind, and reads that overlap may come in any order.
        ([read("set", {})], set()),
        ([read("set", {"": (11,)}), read("set", {}, 21.0, cluster="c")], set()),
        ([read("set", {"": (11,)}), read("set", {}, 20.05)], set()),
        ([read("set", {"": (11,)}, position=Position(2))], set()),
        ([read("list", {"k": (21,)}), read("list", {"k": (21, 22)}, 21.0)], set()),
        ([read("reg", {"k": (31,)}), read("reg", {"k": (32,)}, 21.0)], set()),
    ],
)
def test_checker_finds_wrong_reads_and_accepts_legal_ones(
    reads: list[Read], wrong: set[Wrong]
) -> None:
    assert found(run(reads=reads)) >= wrong
    if not wrong:
        assert found(run(reads=reads)) == set()


# -- random legal histories --------------------------------------------------------------------

KINDS = {
    "set": (Verb.INSERT,),
    "list": (Verb.APPEND,),
    "reg": (Verb.PUT, Verb.UPDATE, Verb.DELETE, Verb.INSERT),
    "d": (Verb.INSERT, Verb.ADD_COLUMN),
}


def legal(random_source: random.Random) -> Run:
    """Invent a run of a ring that keeps its promises.

    Every write takes effect at one moment between its begin and its end, or any time later if its
    outcome is unknown; its offset is its place among those moments. Every cluster applies them in
    that order, each at its own speed, but it has applied what it acknowledges.
    """
    ops = [replace(op(0, Verb.CREATE, "d"), invoked_s=-2.0, completed_s=-1.0)]
    ops += [_some_op(random_source, number) for number in range(1, random_source.randint(2, 40))]
    moments: list[tuple[float, Op]] = []
    for each in ops:
        if each.outcome is Outcome.ACK:
            moments.append((random_source.uniform(each.invoked_s, each.completed_s), each))
        elif each.outcome is Outcome.UNKNOWN and random_source.random() < 0.5:
            moments.append((each.invoked_s + random_source.expovariate(0.2), each))
    moments.sort(key=lambda moment: moment[0])
    offset_of = {each.id: 3 * place for place, (_, each) in enumerate(moments)}
    ops = [
        replace(each, offset=offset_of[each.id]) if each.outcome is Outcome.ACK else each
        for each in ops
    ]
    order = [each for _, each in moments]
    end = 3 * len(order)
    tables = {table: _held(table, order) for table in KINDS}
    finals = [Final(name, Position(end, log_end=end), tables, {}) for name in CLUSTERS]
    reads = [_some_read(random_source, ops, moments, offset_of) for _ in range(20)]
    log = tuple((offset_of[each.id], each.id) for each in order)
    return Run(tuple(ops), tuple(reads), tuple(finals), log)


def _held(table: str, order: Sequence[Op]) -> Content | None:
    mine = [each for each in order if each.table == table]
    return replayed(mine, there=table != "d")


def _some_op(random_source: random.Random, number: int) -> Op:
    table = random_source.choice(list(KINDS))
    verb = random_source.choice(KINDS[table])
    invoked = random_source.uniform(0, 30)
    outcome = Outcome.ACK
    if random_source.random() < 0.3:
        outcome = random_source.choice((Outcome.UNKNOWN, Outcome.NOT_SENT))
    ended = invoked + random_source.uniform(0.01, 5)
    values: tuple[int, ...] = () if verb is Verb.DELETE else (number,)
    key = random_source.choice("kl") if table in ("list", "reg") else ""
    key = COLUMNS if verb is Verb.ADD_COLUMN else key
    if verb is Verb.INSERT and table == "reg":
        key = "own"
    if verb is Verb.INSERT and table == "set":
        values = (number, 1000 + number)
    return Op(
        id=f"r{number}",
        process="w",
        verb=verb,
        table=table,
        key=key,
        values=values,
        invoked_s=invoked,
        completed_s=math.inf if outcome is Outcome.UNKNOWN else ended,
        outcome=outcome,
        cluster=random_source.choice(CLUSTERS) if outcome is Outcome.ACK else "",
        took_s=ended - invoked,
    )


def _some_read(
    random_source: random.Random,
    ops: Sequence[Op],
    moments: Sequence[tuple[float, Op]],
    offset_of: Mapping[str, int],
) -> Read:
    """Read one cluster at one moment, with what it has applied by then."""
    at = random_source.uniform(0, 40)
    begun = at - random_source.uniform(0, 0.2)
    cluster, table = random_source.choice(CLUSTERS), random_source.choice(("set", "list", "reg"))
    # A cluster's lag is fixed in these runs; without that, reads need a speed for each cluster.
    behind_s = {"a": 0.0, "b": 2.0, "c": 7.0}[cluster]
    shown = [e for when, e in moments if when <= at - behind_s]
    for acknowledged in (e for e in ops if e.cluster == cluster and e.completed_s < begun):
        shown += [e for _, e in moments if offset_of[e.id] <= offset_of[acknowledged.id]]
    order = sorted({e.id: e for e in shown}.values(), key=lambda e: offset_of[e.id])
    low = max((offset_of[e.id] for e in order), default=-1) + 1
    position = random_source.choice((None, Position(low, log_end=low)))
    content = _held(table, order) or {}
    level = Level.ANY if behind_s else Level.LINEARIZABLE
    return Read("r", table, cluster, begun, at, content, position, level)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_checker_accepts_a_random_legal_history(random_source: random.Random) -> None:
    assert check(legal(random_source)) == []


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_checker_finds_one_write_removed_from_a_random_history(
    random_source: random.Random,
) -> None:
    history = legal(random_source)
    victims = [
        each
        for each in history.ops
        if each.outcome is Outcome.ACK and each.table in ("set", "list")
    ]
    assume(victims)
    victim = random_source.choice(victims)
    broken = []
    for each in history.finals:
        content = dict(each.tables[victim.table] or {})
        kept = tuple(v for v in content[victim.key] if v not in victim.values)
        tables = {**each.tables, victim.table: {**content, victim.key: kept}}
        broken.append(replace(each, tables=tables))
    assert Wrong.LOST in found(replace(history, finals=tuple(broken)))


# -- the file ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50)))
def test_packed_values_are_unpacked_in_their_order(values: list[int]) -> None:
    assert unpack(pack(values)) == tuple(values)


def test_history_is_loaded_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    history = History(file)
    invocation = {"id": "x", "process": "w", "verb": Verb.APPEND, "table": "t", "key": "k"}
    history.write("invoke", **invocation, values=pack([7]))
    history.write("invoke", **{**invocation, "id": "y"}, values=pack([8]))
    history.write("complete", id="x", outcome=Outcome.ACK, cluster="a", offset=3, error="")
    position = Position(4, frozenset({6, 7}), 9)
    history.write(
        "read",
        process="r",
        table="t",
        cluster="a",
        invoked=0.0,
        content=lines.content_json({"k": (7,)}),
        position=lines.position_json(position),
    )
    history.write(
        "final",
        cluster="a",
        position=lines.position_json(position),
        tables={"t": lines.content_json({"k": (7,)}), "u": None},
        checksums={},
    )
    history.write("log", entries=[[3, "x"]])
    history.write("nemesis", action="kill", target="haproc", name="a", scheme="a HAProc")
    history.close()
    with file.open("a") as text:
        text.write('{"type": "cut off')
    loaded = lines.load(file)
    assert [(each.id, each.outcome, each.offset) for each in loaded.ops] == [
        ("x", Outcome.ACK, 3),
        ("y", Outcome.UNKNOWN, None),
    ]
    assert loaded.reads[0].position == position
    assert loaded.finals[0].tables == {"t": {"k": (7,)}, "u": None}
    assert loaded.log == ((3, "x"),)
    assert check(loaded) == []
    counted = figures(loaded)
    assert counted["kills"] == {"haproc": {"a HAProc": 1}}
    assert counted["operations"] == {"w": {"ack": 1, "unknown": 1}}
    assert "kills_total: 1" in shown(counted)
