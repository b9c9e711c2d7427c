"""Clients that write and read at every level during faults, and the rules for each read.

The real `haproc.route.reads` decides; a query reads the simulated cluster's tables some time after
it was sent there. A client's knowledge is haclient's own record of it. The rules:

- *linearizable*: it shows every record that was in the log when the read began (so everything
acknowledged to any client), and everything that an earlier, finished read has shown;
- *bounded*: the same except for the newest records, up to the bound;
- *session*: it shows everything that this client wrote and saw before, on any cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haclient.settings import SeenOffsets
from haproc.classify.model import OperationClass
from haproc.config.model import Consistency
from haproc.engine.errors import EngineError
from haproc.failure import FailureKind, RequestError
from haproc.membership.peers import PeerUnavailableError
from haproc.node.member import build_reads
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.route.model import Answer, Freshness, HaReport, Request, SentSql
from haproc.route.reads import Reads
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.ring import Ring
from tests.simulation.scenario import Attempted, Report, Scenario, insert
from tests.simulation.violations import Violation

TABLES = ("ids", "copies")
"""The tables that are read: two, so that operations run side by side."""
BOUND = 3


@dataclass
class Shown:
    """A query's result, in place of an Arrow stream."""

    ids: frozenset[str]


@dataclass
class Counted:
    """Counts of reads, all together."""

    levels: dict[str, int] = field(default_factory=dict)
    waits: int = 0
    forwarded: int = 0

    def count_read(self, level: str) -> None:
        self.levels[level] = self.levels.get(level, 0) + 1

    def read_waited(self, level: str, seconds: float) -> None:
        self.waits += 1

    def read_forwarded(self, peer: str) -> None:
        self.forwarded += 1


class Doors:
    """The reads of each process, and the queries of its clients."""

    def __init__(self, ring: Ring, rng: random.Random) -> None:
        self.ring = ring
        self.rng = rng
        self.counted = Counted()
        self._reads: dict[Life, Reads] = {}

    def reads(self, life: Life) -> Reads:
        """Return a process's reads, made at the first request."""
        if life not in self._reads:
            forwarding = SimForwarding(self, life)
            config = self.ring.config
            self._reads[life] = build_reads(config, life.member, forwarding, self.counted)
        return self._reads[life]

    async def ask(self, name: str, request: Request) -> tuple[frozenset[str], HaReport]:
        """Send a client's query to one node; raise Refused and RequestError."""
        life = self.ring.nodes[name].running()

        async def work(replica: Replica) -> Answer:
            if not replica.serving:
                raise replica.writes.unavailable()
            return await self.reads(life).from_cache_or_peer(request) or await self.look(life)

        answer = await life.call(work)
        assert isinstance(answer.result, Shown)
        return answer.result.ids, answer.report

    async def ask_in_turn(
        self, order: list[str], request: Request
    ) -> tuple[frozenset[str], HaReport] | None:
        """Ask the nodes in this order, until one answers; that one comes first the next time."""
        for _ in range(2 * len(order)):
            try:
                async with asyncio.timeout(8):
                    return await self.ask(order[0], request)
            except (Refused, TimeoutError, RequestError):
                order.append(order.pop(0))
                await asyncio.sleep(self.rng.uniform(0.01, 0.5))
        return None

    async def look(self, life: Life) -> Answer:
        """Run the query on the process's own cluster."""
        ids = self.shown(await self.tables(life))
        await life.check()
        return Answer(self.report(life), Shown(ids))  # type: ignore[arg-type]

    async def tables(self, life: Life) -> Mapping[str, Sequence[tuple[object, ...]]]:
        """Return the cluster's tables, as a query reads them at a moment while it runs."""
        spark, rng = life.node.spark, self.rng
        try:
            await life.check()
            await asyncio.sleep(rng.expovariate(20))
            spark._check()
            found = spark.dump()
            await asyncio.sleep(rng.expovariate(20))
            spark._check()
        except EngineError as error:
            raise RequestError(FailureKind.AVAILABILITY, str(error), error_class="SIM") from error
        return found

    def report(self, life: Life) -> HaReport:
        """Return the report of a query that has just been run."""
        after = life.member.core.schedule.high
        return HaReport(life.node.name, OperationClass.QUERY, after_offset=after)

    def shown(self, tables: Mapping[str, Sequence[tuple[object, ...]]]) -> frozenset[str]:
        """Return the ids that a query shows of a cluster's tables."""
        return frozenset(str(row[0]) for table in TABLES for row in tables.get(table, []))


class SimForwarding:
    """Queries from node to node; a peer's answer may come late or never."""

    def __init__(self, doors: Doors, life: Life) -> None:
        self._doors = doors
        self._life = life

    async def query(self, peer: str, request: Request, needed: int, timeout_s: float) -> Answer:
        doors, ring = self._doors, self._doors.ring
        life = ring.nodes[peer].life
        await self._life.check()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(doors.rng.uniform(0, ring.weather.delay_s))
                if life is None:
                    raise Refused
                if not ring.joined(self._life.node.name, peer):
                    await asyncio.sleep(timeout_s)

                async def work(replica: Replica) -> Answer:
                    assert life is not None
                    await doors.reads(life).for_peer(needed, timeout_s)
                    return await doors.look(life)

                answer = await life.call(work)
        except (Refused, TimeoutError, RequestError) as error:
            raise PeerUnavailableError(peer) from error
        await self._life.check()
        return answer


@dataclass
class Read:
    """A read and the ids that it must show."""

    level: Consistency
    client: int
    end_before: int
    """The log's end when the read began."""
    must_show: frozenset[str]
    shown: frozenset[str] = frozenset()
    cluster: str = ""
    began_at: float = 0.0


class ReadScenario(Scenario):
    """See the module."""

    def __init__(self, seed: int, steps: int = 24, clients: int = 4) -> None:
        super().__init__(seed, writes_per_client=steps, clients=clients)
        self.read_rng = random.Random(f"{seed}/reads")
        self.doors = Doors(self.ring, self.read_rng)
        self.done: list[Read] = []
        self.shown_to_anybody: frozenset[str] = frozenset()
        self.answered_by: dict[str, tuple[str, int]] = {}
        """The cluster that acknowledged a write, and the token."""
        for node in self.ring.nodes.values():
            node.spark.statement_s = self.read_rng.choice((0, 0, 0.3, 1))

    async def write(self, attempt: Attempted, order: list[str], value: int) -> bool | None:
        """Try the nodes in order, round after round."""
        table = "ids" if attempt.what == "set" else "copies"
        for _ in range(6):
            for name in list(order):
                try:
                    async with asyncio.timeout(8):
                        op = insert(attempt.id, table, name)
                        age_s = asyncio.get_running_loop().time() - attempt.started_at
                        offset, outcome = await self.ring.submit(name, op, 6, age_s)
                except (Refused, TimeoutError, RequestError):
                    order.append(order.pop(0))
                    continue
                assert outcome.status is OutcomeStatus.APPLIED
                self.answered_by[attempt.id] = name, offset + 1
                return True
            await asyncio.sleep(self.read_rng.uniform(0.1, 1))
        return None

    async def client(self, number: int) -> None:
        """Write and read in turn, and keep the ids that were written and seen."""
        rng = self.read_rng
        order = self.ring.order(number)
        seen, known = SeenOffsets(), frozenset[str]()
        plain = number % 2 == 1  # such a client keeps one number for all
        for n in range(self.writes_per_client):
            await asyncio.sleep(rng.expovariate(4))
            if rng.random() < 0.4:
                seen, known = await self.step(f"r{number}n{n}", order, seen, known, plain)
                continue
            level = rng.choice(tuple(Consistency))
            found = await self.read(level, number, order, seen, known, plain)
            if found is not None:
                seen, known = found

    async def step(
        self, op_id: str, order: list[str], seen: SeenOffsets, known: frozenset[str], plain: bool
    ) -> tuple[SeenOffsets, frozenset[str]]:
        """Write once."""
        what = self.read_rng.choice(("set", "set", "aside"))
        attempt = await self.attempt(op_id, what, order, 0)
        if not attempt.acknowledged:
            return seen, known
        cluster = "" if plain else self.answered_by[op_id][0]
        return seen.after(cluster, self.answered_by[op_id][1]), known | {op_id}

    async def read(
        self,
        level: Consistency,
        number: int,
        order: list[str],
        seen: SeenOffsets,
        known: frozenset[str],
        plain: bool,
    ) -> tuple[SeenOffsets, frozenset[str]] | None:
        """Read once, on the first node that answers."""
        offsets = tuple(sorted(seen.by_cluster.items()))
        wanted = Freshness(level, BOUND, seen.after_offset, offsets)
        request = Request("r", SentSql("SELECT"), "", freshness=wanted, timeout_s=6)
        must_show = known if level is Consistency.SESSION else frozenset()
        if level is Consistency.LINEARIZABLE:
            must_show = self.shown_to_anybody
        now = asyncio.get_running_loop().time()
        read = Read(level, number, self.ring.store.end, must_show, began_at=now)
        answer = await self.doors.ask_in_turn(order, request)
        if answer is None:
            return None
        ids, report = answer
        read.shown, read.cluster = ids, report.cluster
        self.done.append(read)
        self.shown_to_anybody |= ids
        cluster = "" if plain else report.cluster
        return seen.after(cluster, report.after_offset), known | ids

    # -- the checker -----------------------------------------------------------------------

    def check(self, report: Report) -> None:
        """Compare every read with the ids that it had to show."""
        super().check(report)
        written = self.written()
        for read in self.done:
            bound = {Consistency.LINEARIZABLE: 0, Consistency.BOUNDED: BOUND}.get(read.level)
            must_show = read.must_show
            if bound is not None:
                must_show |= {i for offset, i in written if offset < read.end_before - bound}
            missing = sorted(must_show - read.shown)
            if missing:
                report.wrong(
                    Violation.STALE,
                    f"{read.level} read of client {read.client} on {read.cluster}, begun at "
                    f"{read.began_at:.3f}, lacks {missing[:5]}",
                )

    def written(self) -> list[tuple[int, str]]:
        """Return every INSERT in the log, with its offset."""
        return [
            (offset, message.id)
            for offset, message in enumerate(self.ring.store.all_messages())
            if isinstance(message, Operation) and message.id.startswith("r")
        ]


def simulate_reads(seed: int) -> tuple[Report, Counted]:
    """Run one seed; return its report and the counts of reads."""
    scenario = ReadScenario(seed)
    return run(scenario.main()), scenario.doors.counted
