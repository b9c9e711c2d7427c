"""Tests of queries between two HAProcs, complete except for Spark.

Real doors, services and replicas, and one log. The clusters hold no tables: a query returns its
cluster's name. The test decides when operations are applied: it holds a cluster's statements back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from dmq import MemoryKeyValueStore, MemoryLog, MemoryStore
from haproc.classify.rules import Rules
from haproc.config.model import Address, ClusterConfig, Config, Consistency, OnForeignWrite, Reads
from haproc.config.sections import Limits, User
from haproc.doors.apps import REGISTRY, client_app, operator_app
from haproc.doors.http.listener import Listener
from haproc.doors.operators.peers import Forwarded, HeartbeatDoor
from haproc.engine.interface import (
    Applied,
    EngineAddress,
    Observed,
    Restore,
    Settings,
    TableState,
)
from haproc.engine.statement import SqlText, Statement
from haproc.engine.tasks import Planned
from haproc.membership.connections import HttpPeers, PeerDoors
from haproc.membership.peers import founders
from haproc.metrics import Metrics
from haproc.node.member import World, build_member, build_sessions
from haproc.ring.process import free_port
from haproc.route import reads as reads_module
from haproc.route.forward import HttpForwarding
from haproc.route.freshness import Candidate
from haproc.route.parts import Resources
from haproc.route.reads import Reads as Reading
from haproc.route.service import RingService
from tests.alone import alone
from tests.unit.canned import (
    CannedDrains,
    CannedMembers,
    CannedOperators,
    CannedStatus,
    CannedStream,
    chunks_of,
)
from tests.unit.door_rig import STATEMENTS, WAIT_S, until

QUERY = "SELECT name FROM t"


@dataclass
class Spark:
    """A cluster: its sessions, its lanes, and the engine that provides them, in one."""

    name: str
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Statements are applied while this is set."""
    queries: list[str] = field(default_factory=list)
    applied: list[object] = field(default_factory=list)
    """The statements that ran with a marker: clients' writes."""
    settings_: Settings = field(default_factory=Settings)

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Any:
        return self

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> Any:
        return self

    def renew(self) -> None: ...

    async def prepare(self) -> None: ...

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> CannedStream:
        assert isinstance(statement, SqlText)
        self.queries.append(statement.sql)
        return CannedStream(chunks_of(pa.table({"name": [self.name]})))

    async def configure(self, settings: Settings) -> None:
        self.settings_ = settings

    async def settings(self) -> Settings:
        return self.settings_

    async def apply(self, *given: Any, **named: Any) -> Applied:
        await self.go.wait()
        if given[2] is not None:
            self.applied.append(given[0])
        return Applied(affected_rows=1)

    async def fence(self) -> None: ...

    async def probe(self, *, timeout_s: float) -> None: ...

    async def storage(self, known: str) -> str:
        return known or self.name

    async def check_tables(self, tables: Sequence[str]) -> None: ...

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        return {}

    async def table_states(self) -> Sequence[TableState]:
        return []


class HAProc:
    """One of the two HAProcs."""

    def __init__(self, config: Config, name: str, store: MemoryStore) -> None:
        self.name, self.config = name, config
        self.spark = Spark(name)
        self.spark.go.set()
        self.others: list[HAProc] = []
        self.peers = PeerDoors(config, name)
        spark: Any = self.spark  # has no checksums
        keyed, peers = MemoryKeyValueStore(), HttpPeers(self.peers)
        world = World(MemoryLog(store), keyed, spark, peers, alone(config, name))
        member = build_member(config, world)
        self.core, self.replica = member.core, member.replica
        self.metrics = Metrics("demo", name, ["READY"])
        forwarding = HttpForwarding(self.peers)
        reads = Reading(self.replica, config.reads, self.positions, forwarding, self.metrics)
        self.service = RingService(
            Resources(
                config,
                member.replica,
                spark,
                Rules.builtin(),
                member.assurance,
                reads,
                build_sessions(config, member, world)[0],
                counts=self.metrics,
            )
        )
        cluster = config.cluster(name)
        status, heartbeats = CannedStatus(), HeartbeatDoor(config, CannedMembers())
        clients = client_app(config, name, self.service, status, self.metrics)
        operators = operator_app(
            config,
            name,
            self.replica,
            CannedOperators(),
            CannedDrains(),
            status,
            self.metrics,
            heartbeats,
            Forwarded(self.service, clients[REGISTRY].request_admission),
        )
        self.registry = clients[REGISTRY]
        self._doors = [
            Listener(clients, cluster.listen, shutdown_s=1),
            Listener(operators, cluster.peer, shutdown_s=1, shortcut=heartbeats.shortcut),
        ]

    def positions(self) -> list[Candidate]:
        """Return the positions that the other HAProcs would have reported."""
        return [Candidate(each.name, True, each.core.schedule.low) for each in self.others]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.replica.run())
        try:
            for each in self._doors:
                await each.open()
            async with asyncio.timeout(WAIT_S):
                while not self.replica.serving:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            yield
        finally:
            for each in self._doors:
                await each.aclose()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.peers.aclose()


@dataclass
class Pair:
    """Both HAProcs, and a client's HTTP session."""

    a: HAProc
    b: HAProc
    http: aiohttp.ClientSession

    async def ask(self, to: HAProc, sql: str, **fields: Any) -> dict[str, Any]:
        url = to.config.url(to.config.cluster(to.name).listen) + STATEMENTS
        async with self.http.post(url, json={"statement": sql, **fields}) as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def name_from(self, to: HAProc, **fields: Any) -> str:
        """Run the query and return the name of the cluster that computed the rows."""
        answer = await self.ask(to, QUERY, **fields)
        assert answer["status"]["state"] == "SUCCEEDED", answer
        ((name,),) = answer["result"]["data_array"]
        assert name == answer["ha"]["cluster"]
        return str(name)


@contextlib.asynccontextmanager
async def pair(
    tmp_path: Path,
    reads: Reads | None = None,
    limits: Limits | None = None,
    users: tuple[User, ...] = (),
) -> AsyncIterator[Pair]:
    clusters = tuple(
        ClusterConfig(
            name,
            Address("127.0.0.1", free_port()),
            Address("127.0.0.1", free_port()),
            EngineAddress("127.0.0.1", 1),
        )
        for name in "ab"
    )
    config = Config("demo", "memory:", clusters, "ring-secret", tmp_path, users=users)
    config = replace(config, reads=reads or config.reads, limits=limits or config.limits)
    config = replace(config, on_foreign_write=OnForeignWrite.IGNORE)
    store = MemoryStore()
    a, b = HAProc(config, "a", store), HAProc(config, "b", store)
    a.others, b.others = [b], [a]
    async with a.running(), b.running(), aiohttp.ClientSession() as http:
        yield Pair(a, b, http)


async def test_query_runs_on_a_cluster_that_is_fresh_enough(tmp_path: Path) -> None:
    async with pair(tmp_path, Reads(wait_s=0.2)) as ring:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        written = await ring.ask(a, "INSERT INTO t VALUES (1)")
        token = written["ha"]["after_offset"]
        assert token == written["ha"]["log_offset"] + 1
        assert await ring.name_from(b, consistency="any") == "b"
        bounded = {"consistency": "bounded", "acceptable_offset_lag": 0}
        assert await ring.name_from(b, **bounded) == "a"
        assert await ring.name_from(b, consistency="bounded", acceptable_offset_lag=1) == "b"
        assert await ring.name_from(b, consistency="session", after_offset=token) == "a"
        assert await ring.name_from(b, consistency="session", seen={"b": token}) == "b"
        assert await ring.name_from(b, consistency="linearizable") == "a"
        metrics = b.metrics.text().decode()
        assert 'haproc_queries_forwarded_total{peer="a"} 3.0' in metrics
        assert 'haproc_queries_total{consistency="linearizable"} 1.0' in metrics


async def test_query_waits_for_its_own_cluster_and_then_runs_there(tmp_path: Path) -> None:
    async with pair(tmp_path, Reads(Consistency.LINEARIZABLE, wait_s=WAIT_S)) as ring:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        requests = [asyncio.ensure_future(ring.name_from(b)) for _ in range(5)]
        async with asyncio.timeout(WAIT_S):
            while b.core.schedule.read_to == b.core.schedule.low:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert not any(each.done() for each in requests) and b.spark.queries == []
        b.spark.go.set()
        assert await asyncio.gather(*requests) == ["b"] * 5


async def test_query_in_a_session_is_refused_where_another_one_would_be_forwarded(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, Reads(wait_s=0.1)) as ring:
        a, b = ring.a, ring.b
        url = b.config.url(b.config.cluster("b").listen) + "/api/ha/sessions/s"
        async with ring.http.put(url, json={"statements": []}) as response:
            assert response.status == 200
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        answers = await ring.ask(b, QUERY, session_id="s", consistency="linearizable")
        assert (answers["error_class"], answers["outcome"]) == ("HAPROC_NOT_FRESH", "NOT_SENT")
        assert "b lacks 1 record, a has what is needed" in answers["message"]
        b.spark.go.set()


async def test_waiting_queries_end_when_their_clients_disconnect_or_their_cluster_stops(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, Reads(Consistency.LINEARIZABLE, wait_s=WAIT_S)) as ring:
        a, b = ring.a, ring.b
        b.others = []
        admission = b.registry.request_admission
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        requests = [asyncio.ensure_future(ring.ask(b, QUERY)) for _ in range(100)]
        await until(lambda: admission._at_rest.taken == len(requests))
        assert not [each.result() for each in requests if each.done()]
        for each in requests[:40]:
            each.cancel()
        await until(lambda: admission.inside <= 60)
        b.core.condition.stopping()
        answers = await asyncio.gather(*requests[40:])
        assert {each["error_class"] for each in answers} == {"HAPROC_DRAINING"}
        assert admission.inside == 0
        b.spark.go.set()


async def test_queries_that_wait_for_their_cluster_hold_no_permits(tmp_path: Path) -> None:
    limits = Limits(statements_max=2, statement_queue_s=WAIT_S)
    async with pair(tmp_path, Reads(Consistency.LINEARIZABLE, wait_s=0.1), limits) as ring:
        a, b = ring.a, ring.b
        b.others = []
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        admission, requests = b.registry.request_admission, list[asyncio.Future[Any]]()
        for _ in range(6):  # each of them has had a place when the next one comes
            requests.append(asyncio.ensure_future(ring.ask(b, QUERY)))
            await until(lambda: admission._at_rest.taken == len(requests))
        assert await ring.name_from(b, consistency="any") == "b"
        b.spark.go.set()
        answers = await asyncio.gather(*requests)
        assert {each["status"]["state"] for each in answers} == {"SUCCEEDED"}
        assert admission.inside == 0


async def test_query_of_a_peer_is_run_here_or_refused_and_never_forwarded(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, Reads(wait_s=0.1)) as ring:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        token = (await ring.ask(a, "INSERT INTO t VALUES (1)"))["ha"]["after_offset"]
        body = {"request_id": "r", "user": "u", "needed": token, "timeout_s": 5}
        url = b.config.peer_url("b") + "/ha/v1/query"
        secret = {"Authorization": "Bearer ring-secret"}
        for statement, status, error_class in (
            (QUERY, 503, "HAPROC_NOT_FRESH"),
            ("INSERT INTO t VALUES (2)", 400, "HAPROC_NO_QUERY"),
        ):
            request_body = {**body, "statement": statement}
            async with ring.http.post(url, json=request_body, headers=secret) as response:
                answers = await response.json()
                assert (response.status, answers["error_class"]) == (status, error_class), answers
        assert a.spark.queries == [] and b.spark.queries == []
        b.spark.go.set()


async def test_query_for_which_only_a_busy_peer_is_fresh_enough_is_refused_at_once(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, Reads(wait_s=0.1)) as ring, contextlib.AsyncExitStack() as places:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        for _ in range(a.config.limits.statements_max):
            await places.enter_async_context(a.registry.request_admission.permit("x"))
        async with asyncio.timeout(WAIT_S):
            answers = await ring.ask(b, QUERY, consistency="linearizable")
        assert answers["error_class"] == "HAPROC_BUSY"
        assert "a has what is needed; a is busy" in answers["message"]
        await places.aclose()
        assert await ring.name_from(b, consistency="linearizable") == "a"
        b.spark.go.set()


async def test_forwarded_query_leaves_a_peer_that_disappears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads_module, "WATCH_S", 0.02)
    async with pair(tmp_path, Reads(Consistency.LINEARIZABLE, wait_s=0.1)) as ring:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        received = asyncio.Event()

        async def frozen(request: Any, *_: Any, **__: Any) -> Any:
            received.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(a.service, "query_for_peer", frozen)
        waiting = asyncio.ensure_future(ring.name_from(b))
        async with asyncio.timeout(WAIT_S):
            await received.wait()
            b.others = []  # its heartbeats are missed
            b.spark.go.set()
            assert await waiting == "b"


async def test_query_is_not_forwarded_to_a_cluster_that_left_the_ring(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, Reads(wait_s=0.1)) as ring:
        a, b = ring.a, ring.b
        b.spark.go.clear()
        await ring.ask(a, "INSERT INTO t VALUES (1)")
        b.peers.follow(founders(b.config)[1:])
        answers = await ring.ask(b, QUERY, consistency="linearizable", timeout_s=1.0)
        assert answers["error_class"] == "HAPROC_NOT_FRESH"
        b.peers.follow(founders(b.config))
        assert await ring.name_from(b, consistency="linearizable") == "a"
