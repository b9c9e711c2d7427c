"""The order in which a cluster applies operations.

Operations enter in log order. An operation may start when it conflicts with no unfinished one
before it: no table that one of the two writes is read or written by the other. *Exclusive*
operations (DDL, unknown tables) run alone, except beside tables that are being computed (CREATE
TABLE AS). A synchronous operation of another cluster waits for its decision, and operations that
conflict with it wait behind it. A *computed* operation waits for its rows, and only operations on
its tables wait with it. Users take turns with ready operations (`haproc.replicate.queue.turns`).

An operation goes through ``take`` (it runs), ``complete`` (it has run; `progress` contains this)
and ``release`` (that progress is durable; conflicting operations may start). Exactly-once rests on
the order of the last two, see `haproc.replicate.records.progress`.

After a restart, a statement of an earlier incarnation may still be running on the cluster. So the
first statement on each table is the same one: the batch with the stored intent, or the first
operation alone. The table's transaction marker then lets only one of the two commit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.queue.backlog import NOT_AHEAD, CopiedAhead
from haproc.replicate.queue.turns import Readiness, Sharing, Turns, Unmarked
from haproc.replicate.queue.units import (
    MARKER,
    BatchLimits,
    Composing,
    Intent,
    Task,
    TaskState,
    Unfinished,
    Unit,
)
from haproc.replicate.records.operation import DecisionKind, Operation
from haproc.replicate.records.progress import SPAN_MAX, Progress


class Schedule:
    """The queue of this cluster: the operations that it has read and not finished.

    ``doubtful_below``: the log's end at the start; an earlier process may have run what is below.
    ``peer_success``: the operations that are known to have succeeded on a peer.
    """

    def __init__(
        self,
        me: str,
        progress: Progress,
        doubtful_below: int,
        limits: BatchLimits,
        peer_success: PeerSuccess | None = None,
    ) -> None:
        self._me = me
        self._limits = limits
        self.composing = Composing(peer_success or PeerSuccess(), limits)
        self.sharing = Sharing()
        self.resume(progress, doubtful_below)

    def resume(self, progress: Progress, doubtful_below: int) -> None:
        """Begin again with an empty queue, from a stored progress."""
        self._tasks: OrderedDict[int, Task] = OrderedDict()  # in log order
        self._turns = Turns()
        self.computations = self._turns.computations
        self._running: dict[int, Unit] = {}
        self._read_to = progress.low
        self._done = set(progress.done)
        self._old_batches = dict(progress.batches)
        self.unmarked = Unmarked(progress.unmarked, progress.low)
        self._doubtful_below = doubtful_below
        self._looked_below = 0
        self._settled: set[str] = set()
        self._readiness = Readiness(self._me)
        self._uncomputed = self._unlike = 0
        self._singles: set[int] = set()
        self._bytes = 0
        known = [progress.low, *(offset + 1 for offset in progress.done)]
        known += [last + 1 for _, last in progress.batches]
        known += [offset + 1 for offset, _ in progress.unmarked]
        self._high = max(known)
        self._finished = 0
        self._holds = 0
        self._copied = NOT_AHEAD

    def copied(self, ahead: CopiedAhead) -> None:
        """From now on, pass over the operations whose effect the copied tables (``ahead``) have."""
        self._copied = ahead

    # -- entering --------------------------------------------------------------------------

    def enter_operation(self, offset: int, op: Operation) -> bool:
        """Add an operation to the queue; False if it must not run: done, rejected, or in a copy."""
        assert offset >= self._read_to
        self._read_to = offset + 1
        copied = self._copied.stands_for(offset, op)  # not in the progress; a start finds it again
        if copied or offset in self._done or self._readiness.rejected(offset):
            self._over(offset, kept=not copied)
            return False
        before = self._tasks.get(self._turns.newest(op.writes))
        task = Task.of(offset, op, before, single=offset in self._singles)
        self._tasks[offset] = task
        self._turns.queue_operation(offset, op)
        self.sharing.came(op.user, offset)
        self._bytes += op.size_bytes
        self._uncomputed += op.computed
        self._unlike += task.unlike
        return True

    def passed(self, offset: int) -> None:
        """Note that the record at ``offset`` is no operation that this cluster must apply."""
        self._read_to = max(self._read_to, offset + 1)

    def decide(self, offset: int, verdict: DecisionKind) -> bool:
        """Note the decision on a synchronous operation; True if this removed it from the queue."""
        if not self._readiness.decide(offset, verdict):
            return False
        task = self._tasks.get(offset)
        if verdict is DecisionKind.REJECT and task is not None and task.state is TaskState.WAITING:
            self._drop(task)
            return True
        return False

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log."""
        self._readiness.provide(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run here before its decision is read from the log.

        The HAProc that received the operation asks for that, or the ring has rejected it.
        """
        self._readiness.permit(offset)

    def isolate(self, offset: int) -> None:
        """Never combine this operation with others, from now on."""
        self._singles.add(offset)
        if task := self._tasks.get(offset):
            task.isolate()

    def looked_up(self, below: int) -> None:
        """Note that the tables' markers have been read for all operations below an offset."""
        self._looked_below = below

    def restore(self, offsets_applied: Mapping[str, int]) -> list[int]:
        """Mark operations as done by the tables' transaction markers; return their offsets.

        ``offsets_applied``: the last offset found in each table. An operation that writes only that
        table, at or below that offset, was applied.
        """
        found = []
        for task in list(self._tasks.values()):
            if task.state is not TaskState.WAITING or task.op.unmarked or len(task.op.writes) != 1:
                continue
            (table,) = task.op.writes
            if task.offset <= offsets_applied.get(table, -1):
                found.append(task.offset)
                self._high = max(self._high, task.offset + 1)
                self._drop(task)
        return found

    def _drop(self, task: Task) -> None:
        self._leave(task)
        self._over(task.offset)

    def _leave(self, task: Task) -> None:
        del self._tasks[task.offset]
        self._turns.leave(task.offset, task.op)
        self._bytes -= task.op.size_bytes
        self._uncomputed -= task.op.computed
        self._unlike -= task.unlike

    def _over(self, first: int, *, kept: bool = True) -> None:
        """Note that an operation is done; ``kept``: the progress must contain it."""
        (self._done.add if kept else self._done.discard)(first)
        self._finished += 1
        self.unmarked.over(first)
        self._old_batches.pop(first, None)

    def hold(self, *, held: bool) -> None:
        """Begin (``held``) or end a hold. While there is one, no exclusive operation starts."""
        self._holds += 1 if held else -1

    # -- starting --------------------------------------------------------------------------

    def take(self, lanes_free: int) -> list[Unit]:
        """Return the units (statements) to start now, at most ``lanes_free``; mark them as running.

        It stops early once it read texts (`Composing.tried`); so call it again if lanes are free.
        """
        units: list[Unit] = []
        lanes = lanes_free + len(self._running)
        has = Counter(unit.operations[0].user for unit in self._running.values())
        waiting = {u: self._runnable(o) for u, o in self._turns.by_user(self._farthest).items()}
        heads = {user: task for user, tasks in waiting.items() if (task := next(tasks, None))}
        self.composing.begin()
        while heads and len(units) < lanes_free and not self.composing.tried:
            ready = {user: task.offset for user, task in heads.items()}
            user = self.sharing.next(ready, has, lanes, self._read_to)
            if user is None:
                break
            unit = self._begin(heads.pop(user))
            if unit is not None:
                units.append(unit)
                has[user] += 1
                self.sharing.served(user)
            if (task := next(waiting[user], None)) is not None:
                heads[user] = task
        return units

    def _runnable(self, offsets: Iterator[int]) -> Iterator[Task]:
        for task in map(self._tasks.__getitem__, offsets):
            if task.state is TaskState.WAITING and not self._readiness.lacks(task.offset, task.op):
                yield task

    def uncomputed(self) -> list[tuple[int, Operation]]:
        """Return the conflict-free operations that lack their rows.

        Their queries may run now: the tables are exactly as they must be at the operation's place.
        """
        if not self._uncomputed:
            return []
        waits = self._readiness.lacks_rows
        return [(t.offset, t.op) for t in self._in_turn() if waits(t.offset, t.op)]

    def _in_turn(self) -> Iterator[Task]:
        """Yield the waiting operations that conflict with no unfinished one before them."""
        tasks = map(self._tasks.__getitem__, self._turns.in_turn(self._farthest))
        yield from (task for task in tasks if task.state is TaskState.WAITING)

    @property
    def _farthest(self) -> int:
        # From the first that is not released: the stored progress has no room for more.
        return next(iter(self._tasks), self._read_to) + SPAN_MAX

    def _begin(self, head: Task) -> Unit | None:
        if head.op.unmarked:
            return self._begin_unmarked(head)
        if head.offset in self._old_batches:
            last = self._old_batches[head.offset]
            if self._read_to <= last:
                return None  # its end has not been read yet
            return self._again(list(self._on_table(head, last + 1)))
        if self._alone(head) or self._doubtful(head):
            return self._start([head], Intent.NONE)
        members = list(self._joined(head))
        count, text = self._composed(head, len(members))
        if count > len(members):
            members = list(islice(self._on_table(head), count))
            return self._start(members, Intent.BATCH, text)
        return self._start(members, Intent.BATCH if len(members) > 1 else Intent.NONE)

    def _begin_unmarked(self, task: Task) -> Unit | None:
        if self._holds:
            return None
        if task.op is MARKER:
            return self._start([task], Intent.NONE)
        if not self.unmarked.may_begin(task.offset, beside=task.op.beside):
            return None
        self.unmarked.begins(task.offset)
        return self._start([task], Intent.ALONE)

    def _alone(self, task: Task) -> bool:
        """True if an operation must run alone: it fails here, or the log has a report about it."""
        return task.single or self.composing.spoken_of(task.offset)

    def _doubtful(self, task: Task) -> bool:
        """True if an earlier incarnation may have run this operation, the first on its tables."""
        begun = task.offset < self._doubtful_below and not task.op.unmarked
        return begun and not task.op.writes <= self._settled

    def _again(self, members: Sequence[Task]) -> Unit | None:
        """Return an earlier incarnation's batch as a unit; None if columns must be read first."""
        key = members[0].key
        for task in members[1:]:
            key = None if key is None else key.joined(task.key)
        if key is not None:
            return self._start(members, Intent.BATCH)
        (table,) = members[0].op.writes
        if not self.composing.looked_for(table):
            return None
        ops = [task.op for task in members]  # another process's limits allowed them
        count, text = self.composing.composed(table, ops, bounded=False)
        whole = count == len(members)
        return self._start(members, Intent.BATCH, text if whole else "", apart=not whole)

    def _composed(self, head: Task, joined: int) -> tuple[int, str]:
        """Return how many operations of different kinds can run as one statement, and its text.

        No text is read unless it may be more than ``joined``: so many INSERTs can be combined.
        """
        if len(head.op.writes) != 1:
            return 0, ""
        (table,) = head.op.writes
        known = takewhile(self._may_compose, self._beside(head))
        return self.composing.composed(table, self.composing.fitting(known, joined))

    def _may_compose(self, task: Task) -> bool:
        awaited = task.op.origin == self._me and task.offset >= self._doubtful_below
        return not task.single and self.composing.may_compose(task.offset, task.op, awaited)

    def _on_table(self, head: Task, below: int | None = None) -> Iterator[Task]:
        """Yield ``head``, whose turn has come, and the operations after it on its table.

        Yields only ``head`` if it writes several tables, or none.
        """
        if len(head.op.writes) != 1:
            yield head
            return
        (table,) = head.op.writes
        offsets = self._turns.behind(table, head.offset, below or self._farthest)
        yield from map(self._tasks.__getitem__, offsets)

    def _beside(self, head: Task) -> Iterator[Task]:
        """Yield ``head`` and what may run with it on its table; after a split, only its half."""
        return takewhile(lambda task: task.half == head.half, self._on_table(head))

    def _joined(self, head: Task) -> Iterator[Task]:
        """Yield ``head`` and the operations that can be combined with it.

        The statement contains every operation on the table between its first and its last: so
        these two offsets identify it.
        """
        rows = size = count = cells = 0
        key = head.key
        beside = sum(unit.arrow_bytes for unit in self._running.values())
        for task in self._beside(head):
            rows, size, count = rows + task.rows, size + task.op.size_bytes, count + 1
            cells += task.cells
            over = self._limits.exceeded(head.op, count, rows, size, beside, cells)
            if task is not head:
                key = None if over or self._alone(task) or key is None else key.joined(task.key)
                if key is None:
                    return
            yield task

    def _start(
        self, tasks: Sequence[Task], intent: Intent, composed: str = "", *, apart: bool = False
    ) -> Unit:
        offsets = tuple(task.offset for task in tasks)
        in_doubt = (
            self.unmarked.doubted(offsets[0])
            or offsets[0] in self._old_batches
            or (offsets[0] >= self._looked_below and self._doubtful(tasks[0]))
        )
        unit = Unit(offsets, tuple(t.op for t in tasks), intent, in_doubt, composed, apart)
        self._high = max(self._high, offsets[-1] + 1)
        for task in tasks:
            task.become(TaskState.RUNNING)
        self._running[offsets[0]] = unit
        return unit

    # -- ending ----------------------------------------------------------------------------

    def complete(self, unit: Unit) -> None:
        """Note that a unit (statement) has run. From now on, `progress` contains it."""
        for offset in unit.offsets:
            self._tasks[offset].become(TaskState.COMPLETE)
            self._done.add(offset)
        self._running.pop(unit.offsets[0], None)
        self._over(unit.offsets[0])
        self.composing.applied(unit.operations)

    def release(self, unit: Unit) -> None:
        """Remove a unit that has run and whose progress is stored: conflicting ones may start."""
        for offset in unit.offsets:
            task = self._tasks[offset]
            assert task.state is TaskState.COMPLETE
            self._leave(task)
            self._settled |= task.op.writes if offset < self._doubtful_below else frozenset()
            self._readiness.released(offset)

    def split(self, unit: Unit, *, singles: bool = False) -> None:
        """Split a combined unit. From now on, `progress` does not contain its intent.

        Each half may be one statement again; but if ``singles``, each operation runs alone.
        """
        middle = len(unit.offsets) // 2
        for half in (unit.offsets[:middle], unit.offsets[middle:]):
            for offset in half:
                self._tasks[offset].split(half[-1], alone=singles or len(half) == 1)
        self._running.pop(unit.offsets[0], None)
        self._old_batches.pop(unit.offsets[0], None)

    def split_stored(self, unit: Unit) -> None:
        """Let the operations of a split unit start: the progress without its intent is stored."""
        for offset in unit.offsets:
            self._tasks[offset].become(TaskState.WAITING)

    # -- facts -----------------------------------------------------------------------------

    @property
    def low(self) -> int:
        """The cursor: the offset below which every operation is done."""
        return self.done_below(lambda op: True)

    def done_below(self, concerned: Callable[[Operation], bool]) -> int:
        """Return the offset below which every operation is done for which ``concerned`` is True."""
        for offset, task in self._tasks.items():
            if task.state is not TaskState.COMPLETE and concerned(task.op):
                return offset
        return self._read_to

    def applied_of(self, tables: frozenset[str]) -> int:
        """Return the offset below which every operation that may change the tables is done."""
        return max(self.low, self._turns.first_change(tables, self._read_to))

    @property
    def high(self) -> int:
        """The offset from which on no operation has ever started on this cluster."""
        return max(self._high, self.low)

    @property
    def read_to(self) -> int:
        """The offset up to which the log has been read."""
        return self._read_to

    @property
    def needs(self) -> int:
        """The offset up to which the log must be read until all stored batches can run again."""
        return max((last + 1 for last in self._old_batches.values()), default=0)

    @property
    def finished(self) -> int:
        """A count that rises whenever operations are found to be done."""
        return self._finished

    def expects(self, offset: int) -> bool:
        """True if an operation at this offset has still to run here, or is not read yet."""
        task = self._tasks.get(offset)
        unfinished = task is not None and task.state is not TaskState.COMPLETE
        return offset >= self._read_to or unfinished

    def untouched(self, offset: int) -> bool:
        """True if it is certain that no process of this cluster has begun the operation."""
        old = self._old_batches.items()
        if self.unmarked.doubted(offset) or any(a <= offset <= b for a, b in old):
            return False
        if (task := self._tasks.get(offset)) is None:
            return offset >= max(self._read_to, self._doubtful_below)
        looked = offset < self._looked_below or not self._doubtful(task)
        return task.state is TaskState.WAITING and looked

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield the unfinished operations of the queue with their states, in log order."""
        for offset, task in self._tasks.items():
            running = task.state in (TaskState.RUNNING, TaskState.COMPLETE)
            uncomputed = self._readiness.lacks_rows(offset, task.op)
            undecided = self._readiness.lacks_decision(offset, task.op)
            yield Unfinished(offset, task.op, running, undecided, uncomputed)

    @property
    def pending(self) -> int:
        """The number of unfinished operations."""
        return len(self._tasks)

    @property
    def pending_bytes(self) -> int:
        """The size of the unfinished operations, in bytes."""
        return self._bytes

    @property
    def progress(self) -> Progress:
        """The progress of the queue, to be stored with the cursor now."""
        low, rejected = self.low, self._readiness.rejected
        self._done = {offset for offset in self._done if offset >= low}
        self._readiness.forget(low)
        self.unmarked.keep(self.expects)
        self._singles = {offset for offset in self._singles if offset >= low}
        running = self._running.values()
        batches = {u.offsets[0]: u.offsets[-1] for u in running if u.intent is Intent.BATCH}
        batches |= self._old_batches
        # A rejected operation may be far ahead. The stored progress has no room for all of them,
        # and the log shows the rejections again.
        return Progress(
            low=low,
            done=frozenset(o for o in self._done if o < low + SPAN_MAX or not rejected(o)),
            batches=tuple(sorted(batches.items())),
            unmarked=self.unmarked.stored,
        )

    def undecided(self) -> list[tuple[int, Operation]]:
        """Return the conflict-free synchronous operations that wait for their origin's decision."""
        waits = self._readiness.lacks_decision
        return [(t.offset, t.op) for t in self._in_turn() if waits(t.offset, t.op)]

    @property
    def composable(self) -> bool:
        """True if operations may be composed once columns and peers' success are looked up."""
        return self._unlike > 0 or bool(self._old_batches)

    def tables_to_describe(self) -> list[str]:
        """Return the tables whose waiting operations may be composed once columns are known."""
        found: set[str] = set()
        for offset, task in self._tasks.items():
            if task.state is TaskState.WAITING and (task.unlike or offset in self._old_batches):
                found |= task.op.writes
        return sorted(found)
