"""Tests of the schedule at random, against a model of its rules, through crashes and restarts.

The model stands for the log, one cluster with Delta's markers, and the cursor that was stored last.
Statements of a dead incarnation may still commit (`late_commit`). The rules are those of
docs/proofs/exactly-once.md, "Markers and bookkeeping":

- an operation starts only when every conflicting operation before it is durably done; this one rule
means: never side by side, in log order on each table, nothing past an exclusive operation, and
nothing exclusive past others except DDL of known tables past the computation of another one;
- no operation takes effect twice, and in the end each one has taken effect once;
- a batch whose intent was stored is formed again with exactly the same operations, or taken apart
after a look at the table;
- after a restart the first statement on each table is a single operation or the stored batch;
- `low` never goes back, and all progress survives the cursor's encoding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dmq import Cursor
from dmq.log import CURSOR_NOTE_BYTES_MAX
from haproc.classify.model import Kind
from haproc.engine.interface import ABSENT, Column
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits, Intent, Unit
from haproc.replicate.records.operation import DecisionKind, Operation
from haproc.replicate.records.progress import Progress, from_cursor, to_cursor
from tests.unit.operations import copy, ddl, insert, table_as, table_ddl, unknown_tables, update
from tests.windows import operation

ME, PEER = "a", "b"
TABLES = st.sampled_from("xyz")
LIMITS = BatchLimits(operations_max=4)
COLUMNS = (Column("k", "int"), Column("v", "string"))
KINDS = (
    *["insert"] * 5,
    "insert of another form",
    *["update"] * 2,
    *["update by key"] * 2,
    "copy",
    "unknown",
    *["mine"] * 2,
    *["theirs"] * 2,
    "my table",
    "their table",
    "my table's DDL",
    "their table's DDL",
    "something else",
)


@dataclass(frozen=True)
class Decided:
    """A decision in the log."""

    offset: int
    verdict: DecisionKind


@dataclass(eq=False)
class Running:
    """A statement of the current incarnation and its stage."""

    unit: Unit
    looked: bool = False
    sent: bool = False
    committed: bool = False
    complete: bool = False
    stored: bool = False


@dataclass
class Cluster:
    """Tables with markers; counts the effects of each operation."""

    marks: dict[str, int] = field(default_factory=dict)
    effects: Counter[int] = field(default_factory=Counter)

    def run(self, unit: Unit) -> None:
        op = unit.operations[0]
        if alone(op):
            if self.effects[unit.version]:
                assert unit.in_doubt, (
                    "a statement without a mark ran again, and nobody was in doubt"
                )
                return
        else:
            table = min(op.writes)
            if self.marks.get(table, -1) >= unit.version:
                return
            self.marks[table] = unit.version
        for offset in unit.offsets:
            self.effects[offset] += 1
            assert self.effects[offset] == 1, f"{offset} took effect twice"


def alone(op: Operation) -> bool:
    """Return whether no marker shows that an operation was applied."""
    return op.synchronous or not op.tables_known


def computes(op: Operation) -> bool:
    """Return whether an operation runs beside others although it has no marker."""
    return op.kind is Kind.CREATE_TABLE_AS


def conflict(one: Operation, other: Operation) -> bool:
    """Return whether an operation must not start before ``one`` in front of it, written out."""
    if alone(one) and not computes(one):
        return True
    if alone(other) and not computes(other) and not (computes(one) and other.named):
        return True
    touched = one.reads | one.writes, other.reads | other.writes
    return bool(one.writes & touched[1] or other.writes & touched[0])


class Life(RuleBasedStateMachine):
    """The state machine; see the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Operation | Decided | None] = []
        self.fates: dict[
            int, DecisionKind
        ] = {}  # of the synchronous operations, as the log has them
        self.must_commit: set[int] = set()  # the origin ran them with success
        self.cluster = Cluster()
        self.late: list[Unit] = []
        self.cursor = Cursor()
        self.given_up: list[Decided] = []  # though an earlier incarnation may have begun them
        self.found_wrong = False
        self.begin()

    def begin(self) -> None:
        self.peer_success = PeerSuccess()
        progress = from_cursor(self.cursor)
        self.schedule = Schedule(ME, progress, len(self.log), LIMITS, self.peer_success)
        self.running: list[Running] = []
        self.seen_fates: dict[int, DecisionKind] = {}
        self.permitted: set[int] = set()
        self.dropped: set[int] = set()  # not for this incarnation to run: rejected, or restored
        self.low_last = 0
        self.doubtful_below = len(self.log)
        self.begun_tables: set[str] = set()
        self.stored_batches = dict(self.durable.batches)
        for decided in self.given_up:
            self.hear(decided)

    @property
    def durable(self) -> Progress:
        return from_cursor(self.cursor)

    def store(self) -> None:
        progress = self.schedule.progress
        cursor = to_cursor(progress)
        assert from_cursor(cursor) == progress
        assert len(cursor.note) <= CURSOR_NOTE_BYTES_MAX
        assert progress.low >= self.cursor.offset, "the stored low watermark went back"
        assert all(first >= progress.low for first, _ in progress.batches)
        over = [o for o, _ in progress.unmarked if not self.schedule.expects(o)]
        assert not over, "an intent of what is over"
        self.cursor = cursor
        for running in self.running:
            running.stored = running.complete

    # -- the log ---------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), table=TABLES, other=TABLES, count=st.integers(1, 3))
    def log_some(self, kind: str, table: str, other: str, count: int) -> None:
        for _ in range(count):
            self.log_one(kind, table, other)

    def log_one(self, kind: str, table: str, other: str) -> None:
        op_id = f"op{len(self.log)}"
        match kind:
            case "insert":
                self.log.append(insert(op_id, table))
            case "insert of another form":
                self.log.append(insert(op_id, table, signature="j"))
            case "update":
                self.log.append(update(op_id, table, reads=other))
            case "update by key":
                op = operation(f"UPDATE {table} SET v = 'a' WHERE k = 1", table)
                self.log.append(replace(op, origin=PEER))
            case "copy":
                self.log.append(copy(op_id, other, table))
            case "unknown":
                self.log.append(unknown_tables(op_id))
            case "mine":
                self.must_commit.add(len(self.log))
                self.log.append(ddl(op_id, ME))
            case "theirs":
                self.log.append(ddl(op_id, PEER))
            case "my table" | "their table":
                origin = self.origin_of(kind)
                self.log.append(table_as(op_id, other, table, origin))
            case "my table's DDL" | "their table's DDL":
                origin = self.origin_of(kind)
                self.log.append(table_ddl(op_id, table, origin))
            case _:
                self.log.append(None)

    def origin_of(self, kind: str) -> str:
        if kind.startswith("their"):
            return PEER
        self.must_commit.add(len(self.log))
        return ME

    @precondition(lambda self: self.undecided())
    @rule(data=st.data(), verdict=st.sampled_from(DecisionKind))
    def log_decision(self, data: st.DataObject, verdict: DecisionKind) -> None:
        self.decide(data.draw(st.sampled_from(self.undecided())), verdict)

    @precondition(lambda self: self.looked_for())
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Reject an operation that an earlier incarnation may have begun and that had no effect."""
        offset = data.draw(st.sampled_from(self.looked_for()))
        self.must_commit.discard(offset)
        self.decide(offset, DecisionKind.REJECT)
        self.given_up.append(Decided(offset, DecisionKind.REJECT))
        self.hear(self.given_up[-1])

    def looked_for(self) -> list[int]:
        runs = {running.unit.version for running in self.running}
        begun = dict(self.durable.unmarked).keys() - runs
        return [o for o in self.undecided() if o in begun and not self.cluster.effects[o]]

    def undecided(self) -> list[int]:
        return [
            offset
            for offset, op in enumerate(self.log)
            if isinstance(op, Operation) and op.synchronous and offset not in self.fates
        ]

    def decide(self, offset: int, verdict: DecisionKind) -> None:
        self.fates[offset] = DecisionKind.COMMIT if offset in self.must_commit else verdict
        self.log.append(Decided(offset, self.fates[offset]))

    # -- reading ---------------------------------------------------------------------------

    @precondition(lambda self: self.schedule.read_to < len(self.log))
    @rule(count=st.integers(1, 12))
    def read(self, count: int) -> None:
        position = self.schedule.read_to
        for offset in range(position, min(position + count, len(self.log))):
            match self.log[offset]:
                case Operation() as op:
                    self.schedule.enter_operation(offset, op)
                case Decided() as decided:
                    self.schedule.passed(offset)
                    self.hear(decided)
                case None:
                    self.schedule.passed(offset)

    @precondition(lambda self: self.schedule.read_to < len(self.log))
    @rule()
    def look_ahead_for_decisions(self) -> None:
        for entry in self.log[self.schedule.read_to :]:
            if isinstance(entry, Decided):
                self.hear(entry)

    def hear(self, decided: Decided) -> None:
        self.seen_fates.setdefault(decided.offset, decided.verdict)
        runs = any(decided.offset in running.unit.offsets for running in self.running)
        if decided.verdict is DecisionKind.REJECT and not runs:
            self.dropped.add(decided.offset)
        self.schedule.decide(decided.offset, decided.verdict)

    @rule(below=st.integers(0, 60))
    def others_pass(self, below: int) -> None:
        self.peer_success.passed(below)

    @rule(columns=st.sampled_from([COLUMNS, COLUMNS, None]))
    def look_at_tables(self, columns: tuple[Column, ...] | None) -> None:
        composing = self.schedule.composing
        for table in self.schedule.tables_to_describe():
            composing.describe(table, columns, composing.definitions)

    @precondition(lambda self: self.undecided())
    @rule(data=st.data())
    def permit(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.undecided()))
        self.must_commit.add(offset)
        self.permitted.add(offset)
        self.schedule.permit(offset)

    # -- running ---------------------------------------------------------------------------

    @rule(lanes_free=st.integers(1, 4))
    def take(self, lanes_free: int) -> None:
        units = self.schedule.take(lanes_free)
        assert len(units) <= lanes_free
        self.found_wrong = True
        for unit in units:
            self.check_start(unit)
            self.running.append(Running(unit))
        self.found_wrong = False

    def check_start(self, unit: Unit) -> None:
        for offset, op in zip(unit.offsets, unit.operations, strict=True):
            assert self.log[offset] is op
            assert offset not in self.dropped, f"{offset} was not to run"
            self.check_fate(offset, op)
            for earlier, entry in enumerate(self.log[:offset]):
                if (
                    isinstance(entry, Operation)
                    and earlier not in unit.offsets
                    and conflict(entry, op)
                ):
                    assert self.settled(earlier), f"{offset} starts, {earlier} is not settled"
        self.check_batch(unit)
        if unit.in_doubt and unit.intent is Intent.ALONE:
            before = self.schedule.unmarked.before(unit.version)
            assert before == ABSENT, "nobody knows what stood there"
        self.begun_tables |= unit.operations[0].writes

    def check_fate(self, offset: int, op: Operation) -> None:
        if op.synchronous and op.origin != ME:
            committed = self.seen_fates.get(offset) is DecisionKind.COMMIT
            assert committed or offset in self.permitted, f"{offset} starts undecided"

    def settled(self, offset: int) -> bool:
        durable = self.durable
        return offset < durable.low or offset in durable.done or offset in self.dropped

    def check_batch(self, unit: Unit) -> None:
        first, last = unit.offsets[0], unit.offsets[-1]
        op = unit.operations[0]
        assert len(unit.offsets) == 1 or not alone(op)
        for batch_first, batch_last in self.stored_batches.items():
            if batch_first in unit.offsets or batch_last in unit.offsets:
                assert (first, last) == (batch_first, batch_last), "a batch was formed anew"
                on_table = [
                    offset
                    for offset, entry in enumerate(self.log[: last + 1])
                    if offset >= first and isinstance(entry, Operation) and entry.writes & op.writes
                ]
                assert list(unit.offsets) == on_table
                return
        new_table = not op.writes <= self.begun_tables
        if first < self.doubtful_below and new_table and not alone(op):
            assert len(unit.offsets) == 1, "the first statement in doubt on a table is combined"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """Statements progress, each at its own pace."""
        for _ in range(steps):
            if self.running:
                self.step(data.draw(st.sampled_from(self.running)))

    def step(self, running: Running) -> None:
        if running.unit.intent is Intent.ALONE and not (running.unit.in_doubt or running.looked):
            self.schedule.unmarked.stood(running.unit.version, ABSENT)
            running.looked = True
        elif not running.sent:
            if running.unit.intent is not Intent.NONE:
                self.store()
            running.sent = True
        elif running.unit.apart and not running.committed and not self.shown(running.unit):
            self.take_apart(running)
        elif not running.committed:
            self.cluster.run(running.unit)
            running.committed = True
        elif not running.complete:
            self.schedule.complete(running.unit)
            running.complete = True
            self.stored_batches.pop(running.unit.offsets[0], None)
        elif not running.stored:
            self.store()
        else:
            self.schedule.release(running.unit)
            self.running.remove(running)

    @rule()
    def store_progress(self) -> None:
        self.store()

    def splittable(self) -> list[Running]:
        return [
            running
            for running in self.running
            if running.sent
            and not running.committed
            and len(running.unit.offsets) > 1
            and not self.shown(running.unit)
        ]

    def shown(self, unit: Unit) -> bool:
        """Return whether the table's marker shows the unit."""
        return self.cluster.marks.get(min(unit.operations[0].writes), -1) >= unit.version

    @precondition(lambda self: self.splittable())
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        """The combined statement has an application error: none of it ever takes effect."""
        self.take_apart(data.draw(st.sampled_from(self.splittable())))

    def take_apart(self, running: Running) -> None:
        self.running.remove(running)
        self.schedule.split(running.unit, singles=running.unit.apart)
        self.stored_batches.pop(running.unit.offsets[0], None)
        self.late = [unit for unit in self.late if unit.offsets != running.unit.offsets]
        self.store()
        self.schedule.split_stored(running.unit)

    # -- crashes ---------------------------------------------------------------------------

    @precondition(lambda self: self.schedule.pending)
    @rule(
        read_first=st.integers(0, 30),
        tables=st.frozensets(TABLES),
        alone_commits=st.booleans(),
    )
    def crash_and_restart(
        self, read_first: int, tables: frozenset[str], alone_commits: bool
    ) -> None:
        for running in self.running:
            if running.sent and not running.committed:
                if not alone(running.unit.operations[0]):
                    self.late.append(running.unit)
                elif alone_commits:
                    self.cluster.run(running.unit)
        self.begin()
        self.read(read_first)
        if tables:
            known = {t: mark for t, mark in self.cluster.marks.items() if t in tables}
            self.dropped.update(self.schedule.restore(known))
            self.stored_batches = {
                first: last
                for first, last in self.stored_batches.items()
                if first not in self.dropped
            }
            self.store()

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_commit(self, data: st.DataObject) -> None:
        """A statement that a dead incarnation started commits after all."""
        unit = data.draw(st.sampled_from(self.late))
        self.late.remove(unit)
        self.cluster.run(unit)

    # -- always, and in the end ------------------------------------------------------------

    @invariant()
    def low_never_goes_back(self) -> None:
        assert self.schedule.low >= self.low_last
        self.low_last = self.schedule.low

    def teardown(self) -> None:
        """Without further faults, everything runs to its end, exactly once."""
        if self.found_wrong:
            return  # what follows from that would hide it
        for offset in self.undecided():
            self.decide(offset, DecisionKind.COMMIT)
        self.read(len(self.log))
        while self.running or self.schedule.pending:
            idle = not self.running
            self.look_at_tables(COLUMNS)
            self.take(4)
            assert self.running or not idle, "nothing runs and nothing starts"
            for running in list(self.running):
                self.step(running)
        assert (self.schedule.low, self.schedule.pending) == (len(self.log), 0)
        for offset, op in enumerate(self.log):
            if isinstance(op, Operation):
                expected = 0 if self.fates.get(offset) is DecisionKind.REJECT else 1
                assert self.cluster.effects[offset] == expected, f"offset {offset}"


def test_schedule_keeps_its_rules_through_random_crashes_and_restarts() -> None:
    lives = settings(max_examples=100, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(Life, settings=lives)
