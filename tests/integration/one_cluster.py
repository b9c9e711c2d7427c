"""A ring of one cluster in this process, over an existing Spark, for requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from dmq import Log, MemoryKeyValueStore, MemoryLog, MemoryStore
from haproc.classify.rules import Rules
from haproc.config.model import Address, ClusterConfig, Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import EngineAddress
from haproc.membership.connections import HttpPeers, Links, PeerDoors
from haproc.membership.members import Members
from haproc.metrics import Metrics
from haproc.node.member import LocalMember, World, build_member, build_reads, build_sessions
from haproc.ring.process import free_port
from haproc.route.forward import HttpForwarding
from haproc.route.parts import Resources
from haproc.route.service import RingService

_BUILTIN: Final = Rules.builtin()


@asynccontextmanager
async def one_cluster(
    address: EngineAddress,
    log: Log | None = None,
    rules: Rules = _BUILTIN,
    ring: str = "",
    wait_s: float = 60.0,
    **settings: Any,
) -> AsyncIterator[tuple[RingService, LocalMember]]:
    """Yield the service of a HAProc whose ring has only this cluster, once it serves."""
    ring = ring or f"one{uuid.uuid4().hex[:8]}"
    here, there = (Address("127.0.0.1", free_port()) for _ in range(2))
    config = Config(
        ring, "memory:", (ClusterConfig("a", here, there, address),), "secret", **settings
    )
    engine = SparkConnectEngine(address, ring=ring, cluster="a")
    peers = PeerDoors(config, "a")
    members = Members(config.membership, ("a", "a1"), (), Links(config, "a"))
    log = log or MemoryLog(MemoryStore())
    world = World(log, MemoryKeyValueStore(), engine, HttpPeers(peers), members)
    member = build_member(config, world)
    reads = build_reads(config, member, HttpForwarding(peers), Metrics(ring, "a", ["READY"]))
    sessions, *_ = build_sessions(config, member, world)
    service = RingService(
        Resources(config, member.replica, engine, rules, member.assurance, reads, sessions)
    )
    running = asyncio.ensure_future(member.replica.run())
    try:
        async with asyncio.timeout(wait_s):
            await member.replica.core.news.until(lambda: member.replica.serving)
        yield service, member
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peers.aclose()
        await engine.aclose()
