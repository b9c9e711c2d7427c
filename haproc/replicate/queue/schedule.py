"""What a cluster applies next.

Operations enter in log order. One may start when it conflicts with nothing unfinished before it:
no table that one of the two writes is read or written by the other. *Exclusive* operations (DDL,
unknown tables) run with nothing beside them. A synchronous operation that another cluster
originated waits, and everything behind it, until its fate is known. A *computed* one waits for its
rows, and only what touches its tables waits with it.

An operation goes through ``take`` (it runs), ``complete`` (it ran; `progress` says so) and
``release`` (that progress is durable; what conflicts with it may start). The order of the last two
is what exactly-once rests on, see `haproc.replicate.records.progress`.

After a restart, a statement of an earlier incarnation may still be running on the cluster. So the
first statement on each table is the very one that may be running: the batch whose intent was
stored, or the first operation alone. Delta's marks make the two one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from haproc.replicate.heard.elsewhere import Elsewhere
from haproc.replicate.queue.coalesce import BatchLimits, batch_key, cell_count, row_count
from haproc.replicate.queue.composing import Composing, changes_keys, unlike
from haproc.replicate.queue.tasks import State, Task
from haproc.replicate.queue.turns import Turns
from haproc.replicate.queue.units import MARKER, Intent, Unfinished, Unit
from haproc.replicate.records.operation import Operation, Verdict
from haproc.replicate.records.progress import SPAN_MAX, Progress


class Schedule:
    """See the module. ``me`` is the cluster's name; ``doubtful_below`` the log's end at start.

    ``elsewhere``: what is known to have succeeded.
    """

    def __init__(
        self,
        me: str,
        progress: Progress,
        doubtful_below: int,
        limits: BatchLimits,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._me = me
        self._limits = limits
        self.composing = Composing(elsewhere or Elsewhere(), limits)
        self.resume(progress, doubtful_below)

    def resume(self, progress: Progress, doubtful_below: int) -> None:
        """Begin anew, from a stored progress."""
        self._tasks: OrderedDict[int, Task] = OrderedDict()  # in log order
        self._turns = Turns()
        self._running: dict[int, Unit] = {}
        self._read_to = progress.low
        self._done = set(progress.done)
        self._restored = frozenset(progress.done)
        self._old_batches = dict(progress.batches)
        self._old_alone = progress.alone
        self._stood = {} if progress.alone is None else {progress.alone: progress.before}
        self._doubtful_below = doubtful_below
        self._asked_below = 0
        self._settled: set[str] = set()
        self._permitted: set[int] = set()
        self._verdicts: dict[int, Verdict] = {}
        self._provided: set[int] = set()
        self._uncomputed = self._unlike = 0
        self._singles: set[int] = set()
        self._bytes = 0
        known = [progress.low, *(offset + 1 for offset in progress.done)]
        known += [last + 1 for _, last in progress.batches]
        self._high = max(known) if progress.alone is None else max(*known, progress.alone + 1)
        self._finished = 0
        self._holds = 0

    # -- what comes in ---------------------------------------------------------------------

    def add(self, offset: int, op: Operation) -> bool:
        """Enter an operation; False if it was done before the restart."""
        assert offset >= self._read_to
        self._read_to = offset + 1
        if self._verdicts.get(offset) is Verdict.REJECT:
            self._done.add(offset)
        if offset in self._done:
            self._finished += 1
            return False
        key = batch_key(op)
        rows = 0 if key is None else row_count(op)
        before = self._tasks.get(self._turns.newest(op.writes))
        task = self._tasks[offset] = Task(
            *(offset, op, key, rows, cell_count(key, rows)),
            single=offset in self._singles,
            unlike=unlike(op, key, None if before is None else before.key),
        )
        self._turns.add(offset, op)
        self._bytes += op.size_bytes
        self._uncomputed += op.computed
        self._unlike += task.unlike
        return True

    def passed(self, offset: int) -> None:
        """Note that the log holds nothing to apply at ``offset``."""
        self._read_to = max(self._read_to, offset + 1)

    def decide(self, offset: int, verdict: Verdict) -> bool:
        """Note a synchronous operation's fate. True if it will never run here because of it.

        The first decision counts; later ones change nothing.
        """
        if offset in self._verdicts:
            return False
        self._verdicts[offset] = verdict
        task = self._tasks.get(offset)
        if verdict is Verdict.REJECT and task is not None and task.state is State.WAITING:
            self._drop(task)
            return True
        return False

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log: it may run."""
        self._provided.add(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run before its decision: its origin asked for it."""
        self._permitted.add(offset)

    def isolate(self, offset: int) -> None:
        """See to it that an operation is not combined with others."""
        self._singles.add(offset)
        if task := self._tasks.get(offset):
            task.isolate()

    def asked(self, below: int) -> None:
        """Note that the tables of all operations below were asked what was applied already.

        The first one of each table that is not below is looked for when its turn comes.
        """
        self._asked_below = below

    def restore(self, offsets_applied: Mapping[str, int]) -> list[int]:
        """Mark as done what the tables themselves say was applied; return those offsets.

        ``offsets_applied`` holds the last offset found in each table. An operation that wrote
        only that table, at or below that offset, had been applied.
        """
        found = []
        for task in list(self._tasks.values()):
            if task.state is not State.WAITING or task.op.exclusive or len(task.op.writes) != 1:
                continue
            (table,) = task.op.writes
            if task.offset <= offsets_applied.get(table, -1):
                found.append(task.offset)
                self._high = max(self._high, task.offset + 1)
                self._drop(task)
        return found

    def _drop(self, task: Task) -> None:
        self._leave(task)
        self._done.add(task.offset)
        self._finished += 1
        self._forget_intent(task.offset)

    def _leave(self, task: Task) -> None:
        del self._tasks[task.offset]
        self._turns.leave(task.offset, task.op)
        self._bytes -= task.op.size_bytes
        self._uncomputed -= task.op.computed
        self._unlike -= task.unlike

    def _forget_intent(self, first: int) -> None:
        self._stood.pop(first, None)
        self._old_batches.pop(first, None)
        if self._old_alone == first:
            self._old_alone = None

    def hold(self, *, held: bool) -> None:
        """Let nothing exclusive start, which changes what tables there are, until all let go."""
        self._holds += 1 if held else -1

    # -- what is to be done ----------------------------------------------------------------

    def take(self, lanes_free: int) -> list[Unit]:
        """Return units to start now, at most ``lanes_free``; they count as running from here.

        As many as one look at texts gives (`Composing.tried`); whoever can start more asks again.
        """
        units: list[Unit] = []
        self.composing.begin()
        for task in self._in_turn():
            if len(units) == lanes_free or self.composing.tried:
                break
            if not self._may_run(task):
                continue
            if task.op.exclusive:
                intent = Intent.NONE if task.op is MARKER else Intent.ALONE
                units += [] if self._holds else [self._start([task], intent)]
                continue
            unit = self._begin(task)
            if unit is not None:
                units.append(unit)
        return units

    def uncomputed(self) -> list[tuple[int, Operation]]:
        """Return the operations whose turn has come and whose rows are not there.

        Everything that they might see is applied here, and nothing after it.
        """
        if not self._uncomputed:
            return []
        return [(t.offset, t.op) for t in self._in_turn() if self._lacks_rows(t)]

    def _in_turn(self) -> Iterator[Task]:
        """Yield what waits and conflicts with nothing unfinished before it."""
        first = next(iter(self._tasks), None)
        if first is not None:
            tasks = map(self._tasks.__getitem__, self._turns.in_turn(first, self._farthest))
            yield from (task for task in tasks if task.state is State.WAITING)

    @property
    def _farthest(self) -> int:
        # From the first that is not released: the stored progress may not say more than that.
        return next(iter(self._tasks), self._read_to) + SPAN_MAX

    def _may_run(self, task: Task) -> bool:
        return not self._lacks_rows(task) and not self._lacks_decision(task)

    def _lacks_rows(self, task: Task) -> bool:
        return task.op.computed and task.offset not in self._provided

    def _lacks_decision(self, task: Task) -> bool:
        known = task.offset in self._permitted or task.offset in self._verdicts
        return task.op.synchronous and task.op.origin != self._me and not known

    def _begin(self, head: Task) -> Unit | None:
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

    def _alone(self, task: Task) -> bool:
        """Whether an operation runs alone: here, or on another cluster, it is known to fail."""
        return task.single or self.composing.spoken_of(task.offset)

    def _doubtful(self, task: Task) -> bool:
        """Whether an earlier incarnation may have run what is the first on its tables here."""
        begun = task.offset < self._doubtful_below and not task.op.exclusive
        return begun and not task.op.writes <= self._settled

    def _again(self, members: Sequence[Task]) -> Unit | None:
        """Return the batch that an earlier incarnation may have run, once it is known again."""
        key = members[0].key
        for task in members[1:]:
            key = None if key is None else key.joined(task.key)
        if key is not None:
            return self._start(members, Intent.BATCH)
        (table,) = members[0].op.writes
        if not self.composing.looked_for(table):
            return None
        ops = [task.op for task in members]  # formed under another process's limits
        count, text = self.composing.composed(table, ops, bounded=False)
        whole = count == len(members)
        return self._start(members, Intent.BATCH, text if whole else "", apart=not whole)

    def _composed(self, head: Task, joined: int) -> tuple[int, str]:
        """Return how many operations run as one statement though they are not alike, and that.

        Nothing is read of them where those that are alike are as many.
        """
        if len(head.op.writes) != 1:
            return 0, ""
        (table,) = head.op.writes
        known = takewhile(self._may_compose, self._beside(head))
        return self.composing.composed(table, self.composing.fitting(known, joined))

    def _may_compose(self, task: Task) -> bool:
        # Who waits here for an answer is told how many rows it was.
        asked = task.op.origin == self._me and task.offset >= self._doubtful_below
        counts = asked and changes_keys(task.op)
        return not (task.single or counts) and self.composing.may_compose(task.offset, task.op)

    def _on_table(self, head: Task, below: int | None = None) -> Iterator[Task]:
        """Yield all that touch the table of a head whose turn it is, from the head on.

        Nothing before it does. What writes several tables, or none, stands for itself.
        """
        if len(head.op.writes) != 1:
            yield head
            return
        (table,) = head.op.writes
        offsets = self._turns.behind(table, head.offset, below or self._farthest)
        yield from map(self._tasks.__getitem__, offsets)

    def _beside(self, head: Task) -> Iterator[Task]:
        """Yield from the head on what may run with it: of a failed unit its half and no more."""
        return takewhile(lambda task: task.half == head.half, self._on_table(head))

    def _joined(self, head: Task) -> Iterator[Task]:
        """Yield the head and what may run with it in one statement.

        It takes every operation on the table between its first and its last, so that the two
        offsets alone say what it was.
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
        in_doubt = offsets[0] in (self._old_alone, *self._old_batches) or (
            offsets[0] >= self._asked_below and self._doubtful(tasks[0])
        )
        operations = tuple(task.op for task in tasks)
        unit = Unit(offsets, operations, intent, in_doubt, composed, apart)
        self._high = max(self._high, offsets[-1] + 1)
        for task in tasks:
            task.become(State.RUNNING)
        self._running[offsets[0]] = unit
        return unit

    # -- what was done ---------------------------------------------------------------------

    def complete(self, unit: Unit) -> None:
        """Note that the unit ran; `progress` says so from now on."""
        for offset in unit.offsets:
            self._tasks[offset].become(State.COMPLETE)
            self._done.add(offset)
        self._running.pop(unit.offsets[0], None)
        self._finished += 1
        self._forget_intent(unit.offsets[0])
        self.composing.applied(unit.operations)

    def release(self, unit: Unit) -> None:
        """Let what conflicts with the unit start: progress that holds it is durable."""
        for offset in unit.offsets:
            task = self._tasks[offset]
            assert task.state is State.COMPLETE
            self._leave(task)
            self._settled |= task.op.writes if offset < self._doubtful_below else frozenset()
            self._permitted.discard(offset)

    def split(self, unit: Unit, *, singles: bool = False) -> None:
        """Take a combined unit back: `progress` does not name it any more.

        Each half of it may be one statement again, unless its operations are to be ``singles``.
        """
        middle = len(unit.offsets) // 2
        for half in (unit.offsets[:middle], unit.offsets[middle:]):
            for offset in half:
                self._tasks[offset].split(half[-1], alone=singles or len(half) == 1)
        self._running.pop(unit.offsets[0], None)
        self._old_batches.pop(unit.offsets[0], None)

    def split_stored(self, unit: Unit) -> None:
        """Let a split unit's operations start: that progress is durable."""
        for offset in unit.offsets:
            self._tasks[offset].become(State.WAITING)

    def stood(self, offset: int, before: str) -> None:
        """Remember, in the progress, what stood there before a statement without a mark ran."""
        self._stood[offset] = before

    def before(self, offset: int) -> str:
        """Return that; empty if it is not known."""
        return self._stood.get(offset, "")

    # -- what is known ---------------------------------------------------------------------

    @property
    def low(self) -> int:
        """The offset below which everything is done."""
        return self.done_below(lambda op: True)

    def done_below(self, concerned: Callable[[Operation], bool]) -> int:
        """Return the offset below which every operation is done that is ``concerned``."""
        for offset, task in self._tasks.items():
            if task.state is not State.COMPLETE and concerned(task.op):
                return offset
        return self._read_to

    @property
    def high(self) -> int:
        """The offset at or above which nothing was ever started: no table shows any of it."""
        return max(self._high, self.low)

    @property
    def read_to(self) -> int:
        """The offset up to which the log has been read."""
        return self._read_to

    @property
    def needs(self) -> int:
        """The offset up to which it must be read: a stored batch is run again as a whole."""
        return max((last + 1 for last in self._old_batches.values()), default=0)

    @property
    def finished(self) -> int:
        """Rises whenever it becomes known that operations need no more running."""
        return self._finished

    def expects(self, offset: int) -> bool:
        """Whether an operation there is still to be run, or may come."""
        task = self._tasks.get(offset)
        return offset >= self._read_to or (task is not None and task.state is not State.COMPLETE)

    def untouched(self, offset: int) -> bool:
        """Whether no process of this cluster has begun to run an operation, as far as is known."""
        old = self._old_batches.items()
        if offset == self._old_alone or any(a <= offset <= b for a, b in old):
            return False
        if (task := self._tasks.get(offset)) is None:
            return offset >= max(self._read_to, self._doubtful_below)
        looked = offset < self._asked_below or not self._doubtful(task)
        return task.state is State.WAITING and looked

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield what is not finished, in order."""
        for offset, task in self._tasks.items():
            running = task.state in (State.RUNNING, State.COMPLETE)
            uncomputed = self._lacks_rows(task)
            undecided = not uncomputed and self._lacks_decision(task)
            yield Unfinished(offset, task.op, running, undecided, uncomputed)

    @property
    def pending(self) -> int:
        """How many operations are not finished."""
        return len(self._tasks)

    @property
    def pending_bytes(self) -> int:
        """What the unfinished operations weigh."""
        return self._bytes

    @property
    def progress(self) -> Progress:
        """What to store of the queue with the cursor now."""
        low = self.low
        self._done = {offset for offset in self._done if offset >= low}
        self._verdicts = {o: verdict for o, verdict in self._verdicts.items() if o >= low}
        self._singles = {offset for offset in self._singles if offset >= low}
        self._provided = {offset for offset in self._provided if offset >= low}
        units = self._running.values()
        batches = {u.offsets[0]: u.offsets[-1] for u in units if u.intent is Intent.BATCH}
        batches |= self._old_batches
        running = [u.offsets[0] for u in units if u.intent is Intent.ALONE]
        alone = running[0] if running else self._old_alone
        return Progress(
            low=low,
            done=frozenset(offset for offset in self._done if self._worth_storing(offset, low)),
            batches=tuple(sorted(batches.items())),
            alone=alone,
            before="" if alone is None else self.before(alone),
        )

    def _worth_storing(self, offset: int, low: int) -> bool:
        # A rejected operation may be any distance ahead, where nothing else is done; the log says
        # again that it is rejected, and the note beside the cursor has no room for all of them.
        return offset < low + SPAN_MAX or self._verdicts.get(offset) is not Verdict.REJECT

    def undecided(self) -> tuple[int, Operation] | None:
        """Return the synchronous operation that everything waits for, if there is one."""
        for offset, task in self._tasks.items():
            waits = task.state is State.WAITING and not self._lacks_rows(task)
            return (offset, task.op) if waits and self._lacks_decision(task) else None
        return None

    @property
    def composable(self) -> bool:
        """Whether it is worth to find out what `tables_to_describe` and others have passed."""
        return self._unlike > 0 or bool(self._old_batches)

    def tables_to_describe(self) -> list[str]:
        """Return the tables whose columns are worth knowing for what waits."""
        found: set[str] = set()
        for offset, task in self._tasks.items():
            if task.state is State.WAITING and (task.unlike or offset in self._old_batches):
                found |= task.op.writes
        return sorted(found)
