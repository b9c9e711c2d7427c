"""One seeded run: clients write, a nemesis injects faults, then everything heals and is checked.

Workloads: *set* (unique ids into one table: a missing id was lost, a repeated one was doubled),
*register* (each update appends its id to a key's history: it shows order, loss and doubling),
*copy* (INSERT … SELECT from one table into another: it shows the order across tables), and DDL now
and then. Writes of computed rows are in `computed`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from tests.simulation import computed
from tests.simulation.clock import run
from tests.simulation.network import Refused
from tests.simulation.plans import appending
from tests.simulation.ring import LIMITS, Node, Ring
from tests.simulation.violations import Problem, Violation

SETUP = (
    "CREATE TABLE ids (id)",
    "CREATE TABLE registers (k, history CHECK (length(history) < 100000))",
    "CREATE TABLE copies (n)",
    *computed.SETUP,
)
KEYS = 3
TOO_LATE = "HAPROC_RETRY_TOO_LATE"


@dataclass
class Attempted:
    """A client's write and its answer: True acknowledged, False rejected, None unknown."""

    id: str
    what: str
    acknowledged: bool | None = None
    ended_at: float = 0.0
    started_at: float = 0.0


@dataclass
class Report:
    """The report of a run; ``problems`` is empty if every promise was kept."""

    seed: int
    problems: list[Problem] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    rejected: int = 0
    kills: int = 0
    drains: int = 0
    rebuilt: int = 0
    too_late: int = 0
    trimmed: int = 0
    stale: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)

    def wrong(self, violation: Violation, text: str) -> None:
        """Record a broken promise."""
        self.problems.append(Problem(violation, text))


def operation(op_id: str, kind: Kind, sql: str, origin: str, **fields: object) -> Operation:
    """Return an operation as the service would make it."""
    ddl = kind in (Kind.CREATE_TABLE, Kind.DROP_TABLE)
    operation_class = OperationClass.SYNCHRONOUS if ddl else OperationClass.ASYNCHRONOUS
    return Operation(op_id, operation_class, kind, origin, op_id, SqlText(sql), **fields)  # type: ignore[arg-type]


def insert(op_id: str, table: str, origin: str) -> Operation:
    """Return an INSERT that may be combined with its neighbours."""
    head = f"INSERT INTO {table} VALUES "
    shape = InsertShape(len(head), 1, "s")
    sql = f"{head}('{op_id}')"
    return operation(op_id, Kind.INSERT, sql, origin, writes=frozenset({table}), insert=shape)


def build(what: str, op_id: str, origin: str, rng_value: int) -> Operation:
    """Return the operation of a workload step."""
    key = rng_value % KEYS
    match what:
        case "set":
            op = insert(op_id, "ids", origin)
            # Some run alone: tried by their origin first, or of unknown tables.
            match rng_value % 4:
                case 1:
                    return replace(op, operation_class=OperationClass.SYNCHRONOUS)
                case 2:
                    return replace(op, tables_known=False, writes=frozenset())
                case 3 if rng_value % 8 == 3:
                    return replace(op, write=SparkPlan(appending("ids", op_id)), insert=None)
            return op
        case "register":
            sql = f"UPDATE registers SET history = history || ',{op_id}' WHERE k = {key}"
            return operation(op_id, Kind.UPDATE, sql, origin, writes=frozenset({"registers"}))
        case "copy":
            sql = "INSERT INTO copies SELECT count(*) FROM ids"
            tables = {"reads": frozenset({"ids"}), "writes": frozenset({"copies"})}
            return operation(op_id, Kind.INSERT, sql, origin, **tables)
        case "prune":
            sql = "DELETE FROM copies WHERE n IN (SELECT max(n) FROM copies)"
            return operation(op_id, Kind.DELETE, sql, origin, writes=frozenset({"copies"}))
        case "fail":
            sql = "UPDATE registers SET history = hex(zeroblob(60000)) WHERE k = 0"
            return operation(op_id, Kind.UPDATE, sql, origin, writes=frozenset({"registers"}))
        case "create":
            return operation(op_id, Kind.CREATE_TABLE, f"CREATE TABLE d{rng_value % 4} (x)", origin)
        case "drop":
            return operation(op_id, Kind.DROP_TABLE, f"DROP TABLE d{rng_value % 4}", origin)
        case "gather":
            return computed.gather(op_id, origin)
        case "tally":
            return computed.tally(op_id, origin)
        case "make":
            return computed.make(op_id, origin, f"m{rng_value % computed.TABLES}")
        case "unmake":
            sql = f"DROP TABLE m{rng_value % computed.TABLES}"
            return operation(op_id, Kind.DROP_TABLE, sql, origin)
    raise AssertionError(what)


MIX = ("set",) * 8 + ("register",) * 4 + ("copy", "copy", "prune", "fail", "create", "drop")


class Scenario:
    """See the module."""

    setup: tuple[str, ...] = SETUP
    mix: tuple[str, ...] = MIX
    build = staticmethod(build)
    back_rate = 0.6
    """The probability that a killed process is started again, at each turn of the nemesis."""

    def __init__(
        self,
        seed: int,
        writes_per_client: int = 12,
        clients: int = 4,
        window_records: int = 0,
        computing: int = 0,
        rebuilding: int = 0,
    ) -> None:
        """``window_records``: if given, the idempotency window; some retries come too late for it.

        ``computing``: the rows of most writes are computed. ``rebuilding``: an operator rebuilds
        clusters.
        """
        self.seed = seed
        if computing:
            self.mix = computed.MIX
        self.rebuilding = rebuilding > 0
        self.rebuilt = 0
        self.late = window_records > 0
        # Short enough that the log is trimmed again and again.
        window = window_records or random.Random(f"{seed}/window").choice((48, 64, 5000))
        self.ring = Ring(seed, limits=replace(LIMITS, window_records=window))
        self.rng = random.Random(f"{seed}/clients")
        self.nemesis_rng = random.Random(f"{seed}/nemesis")
        self.drains_rng = random.Random(f"{seed}/drains")
        self.rebuilds_rng = random.Random(f"{seed}/rebuilds")
        self.writes_per_client = writes_per_client
        self.clients = clients
        self.attempts: list[Attempted] = []
        self.kills = self.drains = 0
        self.refused_late = 0
        self.stragglers: list[asyncio.Future[None]] = []
        self.writing = True

    async def client(self, number: int) -> None:
        """Write one thing after another; fail over with the same request id."""
        order = self.ring.order(number)
        for n in range(self.writes_per_client):
            await asyncio.sleep(self.rng.expovariate(2))
            what, value = self.rng.choice(self.mix), self.rng.randrange(1000)
            attempt = await self.attempt(f"c{number}n{n}", what, order, value)
            if self.late and self.rng.random() < 0.5:
                self.stragglers.append(asyncio.ensure_future(self.straggle(attempt, value)))

    async def attempt(self, op_id: str, what: str, order: list[str], value: int) -> Attempted:
        """Write once; note the client's answer and its time."""
        attempt = Attempted(op_id, what, started_at=self.now())
        self.attempts.append(attempt)
        attempt.acknowledged = await self.write(attempt, order, value)
        attempt.ended_at = self.now()
        return attempt

    def now(self) -> float:
        """Return the virtual time."""
        return asyncio.get_running_loop().time()

    async def operator(self) -> None:
        """Drain clusters at random, during everything else, and undrain them."""
        rng, ring = self.drains_rng, self.ring
        while self.writing:
            await asyncio.sleep(rng.expovariate(0.2))
            node = ring.nodes[rng.choice(ring.names)]
            ring.note(f"{node.name} is drained")
            node.drain(drained=True)
            self.drains += 1
            await asyncio.sleep(rng.uniform(0.1, 6))
            ring.note(f"{node.name} is given back")
            node.drain(drained=False)

    async def rebuilds(self) -> None:
        """Rebuild clusters at random, during everything else."""
        rng, ring = self.rebuilds_rng, self.ring
        while self.writing and self.rebuilding:
            await asyncio.sleep(rng.expovariate(0.1))
            name = rng.choice(ring.names)
            donor = rng.choice(("", *ring.names))
            with suppress(Refused, RequestError, TimeoutError):
                async with asyncio.timeout(5):
                    await ring.nodes[name].call(partial(_rebuild, name=name, donor=donor))
                ring.note(f"{name} is rebuilt from {donor or 'any'}")
                self.rebuilt += 1

    async def straggle(self, attempt: Attempted, value: int) -> None:
        """Send a write again that was answered or given up long ago."""
        await asyncio.sleep(self.rng.uniform(0, 60))
        name = self.rng.choice(self.ring.names)
        op = self.build(attempt.what, attempt.id, name, value)
        age_s = self.now() - attempt.started_at
        try:
            async with asyncio.timeout(30):
                await self.ring.submit(name, op, 20, age_s)
        except (Refused, TimeoutError):
            pass
        except RequestError as error:
            self.refused_late += error.error_class == TOO_LATE
        if attempt.acknowledged is False:
            attempt.acknowledged = None

    async def write(self, attempt: Attempted, order: list[str], value: int) -> bool | None:
        """Try the nodes in order, round after round."""
        maybe = False
        for _ in range(self.rng.choice((1, 8, 20))):
            for name in list(order):
                try:
                    async with asyncio.timeout(8):
                        outcome = await self.send(name, attempt, value)
                    return outcome.status is OutcomeStatus.APPLIED
                except (Refused, TimeoutError):
                    maybe = True
                except RequestError as error:
                    if error.error_class == TOO_LATE:
                        self.refused_late += 1
                        return None
                    if self.refuses(error):
                        return False
                    assert error.kind is FailureKind.AVAILABILITY, error
                    maybe |= error.outcome is not WriteOutcome.NOT_SENT
                order.append(order.pop(0))
            await asyncio.sleep(self.rng.uniform(0.1, 1))
        return None if maybe else False

    async def send(self, name: str, attempt: Attempted, value: int) -> OperationOutcome:
        """Send a write to one node."""
        op = self.build(attempt.what, attempt.id, name, value)
        _, outcome = await self.ring.submit(name, op, 6, self.now() - attempt.started_at)
        return outcome

    def refuses(self, error: RequestError) -> bool:
        """Return True if an error is a right answer, and means that the write has no effect."""
        return False

    async def nemesis(self) -> None:
        """Inject faults at random until the writing is over."""
        rng, ring = self.nemesis_rng, self.ring
        ring.weather.step_crash_rate = rng.choice((0, 0, 0.002, 0.02))
        ring.weather.peer_loss_rate = rng.choice((0, 0.05, 0.3))
        ring.weather.peer_copy_rate = rng.choice((0, 0.2))
        ring.weather.log_error_rate = rng.choice((0, 0, 0.02, 0.1))
        for node in ring.nodes.values():
            node.spark.environment_error_rate = rng.choice((0, 0, 0.1))
        while self.writing:
            await asyncio.sleep(rng.expovariate(0.7))
            node = ring.nodes[rng.choice(ring.names)]
            match rng.choice(
                ("kill", "kill", "spark", "freeze", "replace", "log", "start", "both")
            ):
                case "kill":
                    self.kill(node.name)
                case "spark":
                    self.kill_spark(node.name)
                case "both":
                    self.kill(node.name)
                    self.kill_spark(node.name)
                case "freeze":
                    ring.note(f"{node.name} freezes")
                    node.freeze()
                    asyncio.get_running_loop().call_later(rng.uniform(0.1, 8), node.thaw)
                case "replace":
                    self.replace(node)
                case "log":
                    ring.note("the log is away")
                    ring.weather.log_away = True
                    asyncio.get_running_loop().call_later(rng.uniform(0.1, 4), self.log_back)
                case "start":
                    pass
            for other in ring.nodes.values():
                if rng.random() < self.back_rate:
                    other.start()
                if rng.random() < self.back_rate:
                    other.spark.restart()

    def replace(self, node: Node) -> None:
        """Freeze a process at one of its next moments, start another, wake the first one up."""
        rng, call_later = self.nemesis_rng, asyncio.get_running_loop().call_later
        earlier = node.life
        if earlier is None:
            return
        self.ring.note(f"{node.name} is replaced")
        earlier.freeze_after(rng.randrange(12))

        def take_over() -> None:
            if node.life is earlier:
                earlier.thawed.clear()
                node.replace()

        delay_s = rng.uniform(0.1, 2)
        call_later(delay_s, take_over)
        call_later(delay_s + rng.uniform(0.1, 8), node.thaw)

    def log_back(self) -> None:
        self.ring.weather.log_away = False

    def kill(self, name: str) -> None:
        self.ring.note(f"{name} is killed")
        self.ring.nodes[name].kill()
        self.kills += 1

    def kill_spark(self, name: str) -> None:
        self.ring.note(f"Spark of {name} is killed")
        self.ring.nodes[name].spark.kill()
        self.kills += 1

    async def heal(self) -> None:
        """End all faults; wait until the ring has settled."""
        weather = type(self.ring.weather)()
        self.ring.weather = weather
        for node in self.ring.nodes.values():
            node.spark.environment_error_rate = 0
            node.spark.restart()
            node.thaw()
        await asyncio.sleep(20)  # of two processes of a cluster one ends
        for node in self.ring.nodes.values():
            node.start()
        await self.ring.settled()

    async def main(self) -> Report:
        await self.ring.begin()
        for n, sql in enumerate(self.setup):
            op = operation(f"setup{n}", Kind.CREATE_TABLE, sql, "a")
            await self.ring.submit("a", op, timeout_s=60)
        for key in range(KEYS):
            sql = f"INSERT INTO registers VALUES ({key}, '')"
            tables = {"writes": frozenset({"registers"})}
            op = operation(f"key{key}", Kind.INSERT, sql, "a", **tables)
            await self.ring.submit("a", op, timeout_s=60)
        nemesis = asyncio.gather(self.nemesis(), self.operator(), self.rebuilds())
        await asyncio.gather(*(self.client(n) for n in range(self.clients)))
        await asyncio.gather(*self.stragglers)
        self.writing = False
        await nemesis
        report = Report(self.seed)
        try:
            await self.heal()
        except TimeoutError:
            states = {n: self.state(n) for n in self.ring.names}
            self.lasting(report, f"the ring did not settle: {states}", *states.values())
        await asyncio.sleep(90)  # comparisons of outcomes come to their end
        await self.verify(report)
        self.check(report)
        return report

    async def verify(self, report: Report) -> None:
        """Check that the ring itself finds its clusters equal."""
        replica = self.ring.nodes["a"].replica
        if replica is None or report.problems:
            return
        marker = (await replica.operators.verify())["marker"]
        assert isinstance(marker, int)
        found: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(120):
                while not found.get("complete"):
                    await asyncio.sleep(1)
                    found = await replica.operators.verification(marker)
        except TimeoutError:
            report.wrong(Violation.NOT_READY, f"the verification did not come to its end: {found}")
        by_cluster = {name: each["finding"] for name, each in found.get("clusters", {}).items()}
        if set(by_cluster.values()) != {"equal"}:
            report.wrong(Violation.UNVERIFIED, f"the verification found {by_cluster}")

    def state(self, name: str) -> str:
        replica = self.ring.nodes[name].replica
        if replica is None:
            return "dead"
        condition, low = replica.core.condition, replica.core.schedule.low
        return f"{condition.state} {condition.reason} low={low} end={self.ring.store.end}"

    # -- the checker -----------------------------------------------------------------------

    def check(self, report: Report) -> None:
        """Check every promise on the tables that the clusters hold now."""
        dumps = {name: node.spark.dump() for name, node in self.ring.nodes.items()}
        first = self.ring.names[0]
        for name in self.ring.names[1:]:
            for table in sorted(dumps[first].keys() | dumps[name].keys()):
                if dumps[first].get(table) != dumps[name].get(table):
                    report.wrong(
                        Violation.UNEQUAL,
                        f"{table} differs: {first} {dumps[first].get(table)} "
                        f"{name} {dumps[name].get(table)}",
                    )
        log = self.ring.store.all_messages()
        offsets = computed.first_offsets(log)
        report.problems += computed.check_log(log)
        for name in self.ring.names:
            if self.state(name).split()[0] != "READY":
                self.lasting(report, f"{name} is {self.state(name)}", self.state(name))
            self.check_one(name, dumps[name], report)
            report.problems += computed.check(name, dumps[name], offsets, self.attempts)
            for life in self.ring.nodes[name].replaced:
                state = life.member.core.condition.state
                report.wrong(Violation.NOT_ENDED, f"a replaced process of {name} is {state}")
        for error in self.ring.errors:
            report.wrong(Violation.CRASHED, repr(error))
        counts = Counter(attempt.acknowledged for attempt in self.attempts)
        report.acknowledged, report.rejected, report.unknown = (
            counts[True],
            counts[False],
            counts[None],
        )
        report.kills, report.too_late = self.kills, self.refused_late
        report.trimmed = self.ring.store.start
        report.drains = self.drains
        report.rebuilt = self.rebuilt
        report.steps = {step.value: count for step, count in self.ring.steps.items()}
        report.history = self.ring.history

    def lasting(self, report: Report, text: str, *states: str) -> None:
        """Record that some clusters do not serve although all faults are over."""
        known = any(state.startswith("DIVERGED") for state in states)
        report.wrong(Violation.DIVERGED if known else Violation.NOT_READY, text)

    def check_one(
        self, name: str, dump: dict[str, list[tuple[object, ...]]], report: Report
    ) -> None:
        """Compare one cluster's tables with the clients' answers."""
        ids = Counter(str(row[0]) for row in dump.get("ids", []))
        histories = [str(row[1]).split(",")[1:] for row in dump.get("registers", [])]
        updates = Counter(op_id for history in histories for op_id in history)
        for attempt in self.attempts:
            if attempt.what not in ("set", "register"):
                continue
            count = (ids if attempt.what == "set" else updates)[attempt.id]
            report.problems += computed.of_attempt(name, attempt, count)
        ended = {a.id: a for a in self.attempts if a.acknowledged}
        for history in histories:
            known = [ended[op_id] for op_id in history if op_id in ended]
            for earlier, later in pairwise(known):
                if later.ended_at < earlier.started_at:
                    text = f"{later.id} ended before {earlier.id} began, on {name}"
                    report.wrong(Violation.ORDER, text)


async def _rebuild(replica: Replica, name: str, donor: str) -> None:
    await replica.operators.rebuild(name, donor)


def simulate(seed: int, **options: int) -> Report:
    """Run one seed and return its report."""
    return run(Scenario(seed, **options).main())
