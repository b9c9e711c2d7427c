"""A cluster that combines what it missed holds what the log's statements leave one after another.

The writes are by key, and a cluster that lags may combine them. Several rows have the same key.
Some statements violate a check if the table has such a row; later statements would hide that.
Rules of what may be combined, and when, are broken on purpose, too.

Docs: docs/proofs/exactly-once.md, "Combining by key".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from dmq import encode
from haproc.classify.model import InsertShape, Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from haproc.engine.statement import SqlText
from haproc.membership.state import State
from haproc.replicate.apply import applier
from haproc.replicate.archive.account import ArchivedStatus, Fates
from haproc.replicate.compose.terms import Key
from haproc.replicate.compose.window import ComposedWindow, Row
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.log_state.members import Claims
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.units import Composing, Unit
from haproc.replicate.records.operation import Operation, to_record
from tests.simulation.broken import BreakRule, batch_formed_anew, marks_dropped
from tests.simulation.clock import run
from tests.simulation.directed import Stage, as_story, story
from tests.simulation.merging import executed
from tests.simulation.ring import Node, Ring
from tests.simulation.scenario import SETUP as PLAIN
from tests.simulation.scenario import Report, Scenario, operation
from tests.simulation.scenario import build as plain_build
from tests.simulation.spark import SimEngine
from tests.simulation.violations import Problem, Violation, found_by, found_in

pytestmark = pytest.mark.usefixtures("quiet")
ACCOUNTS = "CREATE TABLE accounts (k, v, w CHECK (w <> 'bad'))"
KEYS = 3
MIX = (
    *(*("enter",) * 6, *("append",) * 6, *("upsert",) * 3),
    *("ensure", "swap", "leave", "leave", "spoil", "spoil", "mend", "put", "set"),
)
_UPSERT = "MERGE INTO accounts AS a USING (SELECT {key} AS k, ',{op}' AS v) AS s ON a.k = s.k "
_COMES = " WHEN NOT MATCHED THEN INSERT (k, v, w) VALUES (s.k, s.v, 'new')"
_TEXTS = {
    "upsert": f"{_UPSERT}WHEN MATCHED THEN UPDATE SET v = a.v || s.v{_COMES}",
    "ensure": f"{_UPSERT}{_COMES.strip()}",
    "swap": f"{_UPSERT}WHEN MATCHED THEN DELETE{_COMES}",
    "append": "UPDATE accounts SET v = v || ',{op}' WHERE k = {key}",
    "put": "UPDATE accounts SET v = '{op}' WHERE k IN ({key}, {next})",
    "mend": "UPDATE accounts SET w = '{op}' WHERE k = {key}",
    "spoil": "UPDATE accounts SET w = 'bad', v = v || ',{op}' WHERE k = {key}",
    "leave": "DELETE FROM accounts WHERE k = {key}",
}


def build(what: str, op_id: str, origin: str, rng_value: int) -> Operation:
    """Return the operation of a workload step."""
    key = rng_value % KEYS
    writes = frozenset({"accounts"})
    if what == "enter":
        head, row = "INSERT INTO accounts VALUES ", f"({key}, '{op_id}', 'new')"
        shape = InsertShape(len(head), 1, "i,s,s")
        if rng_value % 2:
            head, row = "INSERT INTO accounts (v, k) VALUES ", f"('{op_id}', {key})"
            shape = InsertShape(len(head), 1, "s,i")
        return operation(op_id, Kind.INSERT, head + row, origin, writes=writes, insert=shape)
    if what not in _TEXTS:
        return plain_build(what, op_id, origin, rng_value)
    kind = Kind[_TEXTS[what].partition(" ")[0]]
    sql = _TEXTS[what].format(op=op_id, key=key, next=(key + 1) % KEYS)
    return operation(op_id, kind, sql, origin, writes=writes)


class Keyed(Scenario):
    """See the module."""

    setup = (*PLAIN, ACCOUNTS)
    mix = MIX
    build = staticmethod(build)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ring = Ring(seed)

    def check(self, report: Report) -> None:
        """Hold every cluster against the log's statements, one after another."""
        super().check(report)
        expected, found = expected_state(self.ring)
        missing = [a.id for a in self.attempts if a.acknowledged and a.id not in found]
        if missing:
            report.wrong(Violation.LOST, f"acknowledged, and not in the log: {missing}")
        for name, node in self.ring.nodes.items():
            report.problems += _differs(name, node.spark.dump().get("accounts"), expected)


def expected_state(ring: Ring) -> tuple[list[tuple[object, ...]], set[str]]:
    """Return the rows of `accounts` by the log's statements, and the ids of its operations."""
    messages = ring.store.all_messages()
    fates = Fates(0, Claims())
    for at, message in enumerate(messages):
        fates.note(at, message)
    disk = sqlite3.connect(":memory:", isolation_level=None)
    disk.execute(ACCOUNTS)
    seen: set[str] = set()
    for at, message in enumerate(messages):
        if not isinstance(message, Operation) or message.id in seen:
            continue
        seen.add(message.id)
        endings = fates.endings(at, ring.names) or {}
        if any(ending.status is ArchivedStatus.REJECTED for ending in endings.values()):
            continue
        if "accounts" in message.writes and isinstance(message.write, SqlText):
            with suppress(sqlite3.IntegrityError):
                executed(disk, message.write.sql)
    return sorted(disk.execute("SELECT * FROM accounts"), key=repr), seen


def _differs(
    name: str, held: list[tuple[object, ...]] | None, expected: list[tuple[object, ...]]
) -> Iterator[Problem]:
    if held is not None and held != expected:
        text = f"{name} holds {held}, the log comes to {expected}"
        yield Problem(Violation.OTHERWISE, text)


def simulate(seed: int) -> Report:
    """Run one seed and return what it came to."""
    return run(Keyed(seed).main())


# -- tests -------------------------------------------------------------------------------------

SEEDS_RUN = 4


def test_combining_by_key_under_all_faults_keeps_the_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed: list[Unit] = []
    monkeypatch.setattr(applier.Applier, "_run_unit", counting(composed))
    reports = [simulate(seed) for seed in range(SEEDS_RUN)]
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    assert len(composed) > 3 * SEEDS_RUN


def counting(composed: list[Unit]) -> object:
    original = applier.Applier._run_unit

    async def run_unit(self: applier.Applier, unit: Unit, lane: object) -> None:
        if unit.composed:
            composed.append(unit)
        await original(self, unit, lane)  # type: ignore[arg-type]

    return run_unit


def success_assumed(patch: pytest.MonkeyPatch) -> None:
    """Combine operations that no cluster is known to have applied."""
    patch.setattr(PeerSuccess, "succeeded", lambda self, offset: True)


def errors_unheard(patch: pytest.MonkeyPatch) -> None:
    """Count operations that others have passed as successful, also those with a failure report."""
    patch.setattr(PeerSuccess, "record", lambda self, message: None)


def row_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Let an upsert only change rows that the table has."""

    def come(self: ComposedWindow, key: Key, row: Row, *, surely: bool) -> None:
        """Add no row."""

    patch.setattr(ComposedWindow, "_come", come)


def row_inserted_whatever_the_table_has(patch: pytest.MonkeyPatch) -> None:
    """Take a key that the window does not know for a key that the table does not have."""
    original = ComposedWindow._come

    def come(self: ComposedWindow, key: Key, row: Row, *, surely: bool) -> None:
        original(self, key, row, surely=True)

    patch.setattr(ComposedWindow, "_come", come)


@pytest.mark.parametrize(
    ("break_rule", "first"),
    [
        (success_assumed, 12),
        (errors_unheard, 14),
        (batch_formed_anew, 5),
        (marks_dropped, 0),
        (row_forgotten, 0),
        (row_inserted_whatever_the_table_has, 4),
    ],
)
def test_rule_of_combining_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    # Who finds itself different applies nothing more, and lacks what comes later.
    also_allowed = {Violation.DOUBLED, Violation.REJECTED, Violation.LOST}
    runs: Iterator[Report] = (simulate(seed) for seed in range(first, first + 300))
    found_in((run.problems for run in runs), Violation.OTHERWISE, also_allowed)


# -- stories -----------------------------------------------------------------------------------


async def missed(stage: Stage, *whats: str) -> None:
    """Let cluster c miss some writes; the others have applied them before it is back."""
    for n, what in enumerate(whats):
        await stage.submit("a", build(what, f"{what}{n}", "a", 0))
    await stage.ready("a", "b")
    for name in "ab":
        replica = stage.replica(name)
        await replica.core.store()


async def accounts(stage: Stage) -> None:
    """Create the table, with a row in it that all clusters have."""
    await stage.submit("a", operation("make", Kind.CREATE_TABLE, ACCOUNTS, "a"))
    await stage.submit("a", build("enter", "first", "a", 0))
    await stage.ready("a", "b", "c")


def merges(stage: Stage, name: str) -> list[str]:
    return [sql for _, cluster, sql in stage.commits if cluster == name and "haproc_s" in sql]


MISSED = ("enter", "append", "put", "append", "enter", "append", "leave", "enter", "append")


@as_story()
async def test_missed_writes_are_combined_into_one_statement(stage: Stage) -> None:
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, *MISSED[:8])
    stage.node("c").start()
    await stage.settle()
    assert len(merges(stage, "c")) == 1
    assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == ["enter7"]


@as_story()
async def test_missed_upserts_are_in_the_combined_statement(stage: Stage) -> None:
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, "append", "upsert", "leave", "ensure", "upsert", "ensure", "swap")
    await missed(stage, "upsert", "append")
    stage.node("c").start()
    await stage.settle()
    assert len(merges(stage, "c")) == 1
    assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == [",upsert0,append1"]


@as_story()
async def test_missed_operation_that_failed_on_others_runs_alone(stage: Stage) -> None:
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, "append", "append", "append", "spoil", "mend", "append")
    stage.node("c").start()
    await stage.settle()
    assert len(merges(stage, "c")) == 2
    (row,) = stage.node("c").spark.dump()["accounts"]
    assert row == (0, "first,append0,append1,append2,append5", "mend4")


async def no_plain_columns(self: SimEngine, table: str) -> Sequence[Column] | None:
    """Return that the table does more than store the given values."""
    return None


async def columns_unreadable(self: SimEngine, table: str) -> Sequence[Column] | None:
    """Raise an environment error of this cluster."""
    raise EngineError(ErrorKind.ENVIRONMENT, "a file of the table's log cannot be read")


@pytest.mark.parametrize("columns", [no_plain_columns, columns_unreadable])
@pytest.mark.parametrize("step", [Step.INTENT_AFTER, Step.APPLY_AFTER])
@as_story()
async def test_combined_statement_that_cannot_be_rebuilt_is_run_in_parts(
    stage: Stage, step: Step, columns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, *MISSED)
    first = [] if step is Step.INTENT_AFTER else [lambda node: None]

    def die(node: Node) -> None:
        node.kill()
        monkeypatch.setattr(SimEngine, "plain_columns", columns)

    stage.at("c", step, *first, die)
    stage.node("c").start()
    await stage.until(lambda: not stage.node("c").alive)
    await stage.settle()
    assert len(merges(stage, "c")) == (step is Step.APPLY_AFTER)
    assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == ["enter7,append8"]


async def recreated_meanwhile(stage: Stage) -> None:
    """A table gets its columns in another order, between writes that are combined."""
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, *MISSED)
    other = "CREATE TABLE accounts (v, k, w)"
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE accounts", "a"))
    await stage.submit("a", operation("again", Kind.CREATE_TABLE, other, "a"))
    for n in range(4):
        await stage.submit("a", build("enter", f"late{n}", "a", 0))
    await stage.submit("a", build("leave", "last", "a", 1))
    await stage.ready("a", "b")
    stage.node("c").start()
    await stage.settle()
    assert merges(stage, "c")


def test_columns_are_looked_up_again_after_ddl() -> None:
    story(recreated_meanwhile)


def test_rule_of_looking_up_columns_again_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Composing, "applied", lambda self, operations: None)
    found_by(lambda: story(recreated_meanwhile), Violation.UNEQUAL)


@as_story()
async def test_cursor_beyond_the_end_of_a_shortened_log_is_no_success_of_later_operations(
    stage: Stage,
) -> None:
    await accounts(stage)
    ring = stage.ring
    for name in "abc":
        stage.node(name).kill()
    # c had applied 40 records more, which the log has lost.
    stored = ring.store.cursors["c"]
    ring.store.cursors["c"] = replace(stored, offset=ring.store.end + 40)
    stage.node("c").start()
    await stage.until(lambda: stage.alive_state("c") is State.TOO_FAR_BEHIND)
    for n, what in enumerate(("append", "append", "spoil", "mend", "append")):
        entry = replace(build(what, f"{what}{n}", "a", 0), since=0, window=5000)
        ring.store.append_stored([encode(to_record(entry))])
    stage.node("b").start()
    await stage.until(lambda: stage.alive_state("b") is State.READY)
    # Nobody has passed them, so they run one by one, and what fails is told.
    assert merges(stage, "b") == []
    assert stage.report_of("b") is not None
