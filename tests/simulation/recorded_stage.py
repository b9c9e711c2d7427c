"""The trace of a story on the ring: the log's records, each Spark's statements, and the answers.

Nothing is left to chance here: every delay has its mean, each cluster at a pace of its own. So a
story changes only when the ring behaves otherwise. Who does what is observed from outside: what
the store of the log is given, what each Spark runs, the states that processes tell.

    log 5     c: operation w2 ...      what stands in the log at offset 5, and who says so
    spark a   starts ..., mark 5       a statement begins on a's cluster, marked with that offset
    b         stores: below 5 done     the cursor of b, as it is kept
    c2        is READY                 the state of c's second process
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from dmq import Cursor, decode
from haproc.config.sections import Limits
from haproc.engine.errors import EngineError
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome
from haproc.replicate.records.control import (
    Abandon,
    Checksums,
    FailureVote,
    FateMessage,
    Revoke,
    Verify,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    FailureReport,
    Filler,
    Message,
    Operation,
    from_record,
)
from haproc.replicate.records.progress import Progress, from_cursor
from haproc.replicate.records.rows import ApplicationFailure, Part, Passed, Rows
from tests.simulation.clock import run
from tests.simulation.directed import Stage
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.plans import QUIET
from tests.simulation.ring import LIMITS, Node
from tests.simulation.spark import SimSession, SimSpark

PACES: Final = {"a": 1.0, "b": 1.1, "c": 1.25}
SQL_MAX: Final = 70
"""The shown characters of a statement."""


class Steady(random.Random):
    """Random source that returns the mean, times a pace; rare events never happen."""

    def __init__(self, pace: float = 1.0) -> None:
        super().__init__(0)
        self._pace = pace

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2 * self._pace

    def expovariate(self, lambd: float = 1.0) -> float:
        return self._pace / lambd

    def random(self) -> float:
        return 0.999

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 4


class RecordedStage(Stage):
    """A stage on which every event is recorded."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(1, limits)
        self.lines: list[str] = []
        self._listening = False
        self._line_at = 0.0
        self.failed = dict.fromkeys(PACES, 0)
        """The number of failed statements on each cluster."""
        self._claims: dict[int, str] = {}
        """Processes, by the epoch that their cursors carry."""
        self._running: dict[tuple[str, str], bool] = {}
        """Running statements, by cluster and text: whether they have committed."""
        ring = self.ring
        ring.rng = ring.beats_rng = Steady()
        ring.on_state = self._is
        ring.delay_s = lambda name: ring.weather.delay_s / 2 * PACES[name]  # type: ignore[method-assign]
        for name, node in ring.nodes.items():
            node.spark._rng = Steady(PACES[name])
            self._watch(node.spark)
        self._stored = {name: Progress() for name in ring.names}
        ring.store.cursors = _Cursors(self._stores)
        appended = ring.store.append_stored

        def append_stored(encoded: Sequence[bytes]) -> list[int]:
            offsets = appended(encoded)
            for offset, data in zip(offsets, encoded, strict=True):
                message = from_record(decode(data))
                if isinstance(message, Claim):
                    self._claims[offset] = message.incarnation.removesuffix("1")
                self.say(f"log {offset}", described(message))
            return offsets

        def trimmed(name: str, before: int) -> None:
            self.say(name, f"trims the log: it begins at {before}")

        ring.store.append_stored = append_stored  # type: ignore[method-assign]
        ring.trimmed = trimmed  # type: ignore[method-assign]

    def say(self, who: str, what: str) -> None:
        """Write a line; before it, the time that passed in whole seconds."""
        if not self._listening:
            return
        passed_s = round(self.now - self._line_at)
        if passed_s:
            self.lines.append(f"          ({passed_s} s)")
        self._line_at = self.now
        self.lines.append(f"{who:<9} {what}")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the events meanwhile out of the story."""
        listening, self._listening = self._listening, False
        yield
        self._listening, self._line_at = listening, self.now

    def begin(self) -> None:
        """Begin the story here."""
        self._listening, self._line_at = True, self.now

    # -- what is seen ----------------------------------------------------------------------

    def _is(self, life: Life, state: State, reason: str) -> None:
        self.say(process(life), f"is {state}")

    def _stores(self, name: str, cursor: Cursor) -> None:
        before, after = self._stored[name], from_cursor(cursor)
        self._stored[name] = after
        if (text := stored(after)) != stored(before):
            self.say(self._claims.get(cursor.epoch, name), f"stores: {text}")

    def _committed(self, cluster: str, sql: str) -> None:
        super()._committed(cluster, sql)
        self._running[cluster, sql] = True
        self.say(f"spark {cluster}", f"commits {short(sql)}")

    def _watch(self, spark: SimSpark) -> None:
        name = f"spark {spark.name}"
        started, read, session_of = spark.start, spark.read, spark.session
        read_offsets, released = spark.offsets_applied, spark.release

        def start(session: SimSession, operation_id: str, sql: str) -> asyncio.Task[Any]:
            if sql.startswith("USE ") or sql in QUIET:
                return started(session, operation_id, sql)
            mark, self._running[spark.name, sql] = session.mark, False
            marked = "" if mark is None else f", mark {mark.version}"
            guarded = ", guarded" if mark is not None and mark.guarded else ""
            self.say(name, f"starts {short(sql)}{marked}{guarded}")
            task = started(session, operation_id, sql)
            task.add_done_callback(lambda done: ended(sql, done))
            return task

        def ended(sql: str, task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                self.say(name, f"stops {short(sql)}")
            elif isinstance(error := task.exception(), EngineError):
                self.failed[spark.name] += 1
                self.say(name, f"fails {short(sql)}: {_class(error) or error.message}")
            elif not self._running[spark.name, sql]:
                self.say(name, f"has it already: {short(sql)}")

        async def query(sql: str, table: str = "") -> Any:
            self.say(name, f"runs {short(sql)}{' for ' * bool(table)}{table}")
            return await read(sql, table)

        def session(session_id: str, observed: str, *, make: bool) -> SimSession:
            try:
                return session_of(session_id, observed, make=make)
            except EngineError as error:
                if observed:
                    self.say(name, f"refuses a call: {error.error_class}")
                raise

        async def offsets_applied(tables: Sequence[str], application: str) -> Mapping[str, int]:
            found = await read_offsets(tables, application)
            marks = [f"{table} has mark {found.get(table, 'none')}" for table in sorted(tables)]
            self.say(name, f"is asked for marks: {', '.join(marks)}")
            return found

        def release(session_id: str, *, reconnect: bool) -> None:
            found = session_id in spark._sessions
            released(session_id, reconnect=reconnect)
            if found and self.alive_state(spark.name) is not State.READY:  # else a matter of course
                self.say(name, "ends a lane's session, and what runs there")

        spark.start, spark.read = start, query  # type: ignore[method-assign]
        spark.offsets_applied = offsets_applied  # type: ignore[method-assign]
        spark.release = release  # type: ignore[method-assign]
        spark.session = session  # type: ignore[method-assign]

    # -- what a story does -----------------------------------------------------------------

    async def ask(self, name: str, op: Operation, timeout_s: float = 30, age_s: float = 0) -> None:
        """Send a client's write, and write down its outcome or the error."""
        self.say("client", f"sends {op.id} to {name}")
        try:
            outcome = await self.submit(name, op, timeout_s, age_s)
        except RequestError as error:
            result = f"{error.error_class}, outcome {error.outcome.value}"
        except Refused:
            result = "nothing: the connection breaks"
        else:
            result = outcome_text(outcome)
        self.say("client", f"hears of {op.id} from {name}: {result}")

    def kills(self, node: Node) -> None:
        """Kill the node's process (a fault)."""
        self.say(_current(node), "is killed")
        node.kill()

    def starts(self, name: str) -> None:
        """Start a process."""
        node = self.node(name)
        self.say(name, "is started again")
        node.start()

    def strike(self, name: str, step: Step, fault: Callable[[Node], None]) -> None:
        """Place a fault at a step, and write down where it strikes."""

        def fall(node: Node) -> None:
            self.say(_current(node), f"comes to {step.value}")
            fault(node)

        self.at(name, step, fall)

    def holds(self, table: str = "t") -> None:
        """Write down every cluster's content of a table."""
        for name in self.ring.names:
            rows = self.node(name).spark.dump().get(table)
            text = "no such table" if rows is None else ", ".join(_row(row) for row in rows)
            self.say(f"spark {name}", f"holds in {table}: {text or 'nothing'}")


class _Cursors(dict[str, Cursor]):
    """The log's cursors; each stored one is written down."""

    def __init__(self, stores: Callable[[str, Cursor], None]) -> None:
        super().__init__()
        self._stores = stores

    def __setitem__(self, reader: str, cursor: Cursor) -> None:
        super().__setitem__(reader, cursor)
        self._stores(reader, cursor)


def process(life: Life) -> str:
    """Return a process's name: the cluster's, with a number from the second one on."""
    return life.node.name + (str(life.incarnation) if life.incarnation > 1 else "")


def _current(node: Node) -> str:
    return process(node.life) if node.life is not None else node.name


def _row(row: tuple[object, ...]) -> str:
    return " ".join(str(value) for value in row)


def short(sql: str) -> str:
    """Return a statement in one line, cut if it is long."""
    sql = " ".join(sql.split()).replace(" ,", ",")
    return sql if len(sql) <= SQL_MAX else sql[:SQL_MAX] + "…"


def outcome_text(outcome: OperationOutcome) -> str:
    """Return an outcome as a client receives it."""
    failure = outcome.failure
    return outcome.status.value + (f", {_class(failure)}" if failure is not None else "")


def _class(error: EngineError | ApplicationFailure) -> str:
    return error.sqlstate or error.error_class


def stored(progress: Progress) -> str:
    """Return a cursor's content in words."""
    parts = [f"below {progress.low} done"]
    if progress.done:
        parts.append("done " + " ".join(map(str, sorted(progress.done))))
    parts += [f"about to run {first} to {last} as one" for first, last in progress.batches]
    parts += [f"about to run {offset}" for offset, _ in progress.unmarked]
    if progress.diverged is not None:
        parts.append("differs from the others")
    return ", ".join(parts)


def _of_word(word: FateMessage) -> str:
    match word:
        case FailureVote():
            how = "does not apply" if word.wish >= 0 else "unable to apply"
            return f"{word.cluster}: {how} {word.offset}"
        case VoteWithdrawal() if word.done:
            return f"{word.cluster}: has applied {word.offset}, it stands"
        case VoteWithdrawal():
            return f"{word.cluster}: able to apply {word.offset} after all"
        case Revoke():
            return f"{word.by}: {word.who} wants {word.offset} taken back"
        case Abandon():
            words = " ".join(f"{name}@{at}" for name, at in sorted(word.votes.items()))
            how = "taken back" if word.revoked else "given up"
            return f"{word.by}: {word.offset} is {how}, by the words {words}"


def described(message: Message | Filler) -> str:
    """Return a record in words: its author and its content."""
    match message:
        case Operation():
            ground = f", as of {message.analyzed_to}" if message.analyzed_to is not None else ""
            sql = getattr(message.write, "sql", "rows")
            waits = ", its rows to be computed" if message.computed else ""
            return f"{message.origin}: operation {message.id}: {short(sql)}{waits}{ground}"
        case Decision():
            return f"{message.by}: {message.verdict.value} {message.offset}"
        case FailureReport():
            return f"{message.cluster}: {message.offset} failed, {_class(message.failure)}"
        case Claim():
            return f"{message.cluster}: claimed by process {message.incarnation}"
        case Rows():
            content = _class(message.failure) if message.failure else str(message.count)
            if message.filling is not None and message.filling.parts:
                content += f", at {', '.join(map(str, message.filling.parts))}"
            return f"{message.by}: the rows of {message.offset}: {content}"
        case Part():
            return f"{message.by}: part {message.number} of the rows of {message.offset}"
        case Passed():
            return f"{message.by}: cannot run the query of {message.offset}"
        case FailureVote() | VoteWithdrawal() | Abandon() | Revoke():
            return _of_word(message)
        case Verify():
            return f"{message.by}: verification"
        case Checksums():
            return f"{message.cluster}: checksums at {message.marker}: {', '.join(message.tables)}"
        case _:
            return type(message).__name__.lower()


def trace_of(
    script: Callable[[RecordedStage], Coroutine[Any, Any, None]], limits: Limits = LIMITS
) -> str:
    """Run a story, and return its trace as text, headed by the story's docstring."""

    async def main() -> list[str]:
        stage = RecordedStage(limits)
        await stage.ring.begin()
        await script(stage)
        return stage.lines

    title = (script.__doc__ or "").strip().splitlines()
    return "\n".join([*(line.strip() for line in title), "", *run(main()), ""])
