"""Stand-ins behind a door in tests: they answer from tables, and record their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from dmq import Json
from haproc.classify.model import OperationClass, WriteConcern
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.config.model import Address
from haproc.doors.status import Readiness
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Chunk, Column
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.membership.peers import (
    CopyAnswer,
    CopyQuestion,
    PeerOutcome,
    PeerProgress,
    PeerStatus,
)
from haproc.membership.state import Beat, ClusterReport, State
from haproc.replicate.archive.pages import Page
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.route.classifying import with_bound
from haproc.route.model import Answer, HaReport, Request, Sent, SentRows, SentSql
from haproc.route.offload import Inline
from haproc.route.rows.reading import fitted


def arrow(**columns: Any) -> bytes:
    """Return an Arrow IPC stream of one batch."""
    return stream_of(pa.table(columns))


def chunks_of(*tables: pa.Table) -> list[Chunk]:
    return [Chunk(stream_of(table), table.num_rows) for table in tables]


@dataclass
class CannedStream:
    """A result; an exception among the chunks is raised in its turn."""

    chunks: Sequence[Chunk | Exception | asyncio.Event]
    taken: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
                continue
            self.taken += 1
            yield chunk

    async def aclose(self) -> None:
        self.closed.set()


@dataclass
class Canned:
    """The reaction of the service to one statement: wait, then answer or raise."""

    chunks: Sequence[Chunk | Exception | asyncio.Event] = ()
    operation_class: OperationClass = OperationClass.QUERY
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
    error: Exception | None = None
    hold: asyncio.Event | None = None
    outcomes: Mapping[str, str] = field(default_factory=lambda: {"a": "applied"})


ONE = Canned(chunks_of(pa.table({"n": pa.array([1], pa.int32())})), columns=(Column("n", "int"),))
WRITE = Canned(
    chunks_of(pa.table({"num_affected_rows": [1]})),
    OperationClass.ASYNCHRONOUS,
    affected_rows=1,
)


class CannedService:
    """Answers from a table; records its requests."""

    def __init__(self) -> None:
        self.table: dict[str, Canned] = {"SELECT 1": ONE, "INSERT": WRITE}
        self.requests: list[Request] = []
        self.needed: list[int] = []
        self.rows: list[Request] = []
        self.sessions: dict[str, tuple[str, tuple[str, ...], bool]] = {}
        self.streams: list[CannedStream] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.started = asyncio.Event()
        self.written: dict[tuple[str, str], Request] = {}
        """The writes in the log, by user and id."""
        self.fate: Fate | None = None
        """The result of revoking a write; None: it is not in the log."""
        self.revoked: list[tuple[str, str]] = []
        self.final = False
        self.concerns: list[WriteConcern | None] = []
        """The requested write concerns."""
        self.away: RequestError | None = None
        """The reason why nothing new is accepted, if so."""
        self.columns: tuple[Column, ...] = (Column("n", "int"), Column("s", "string"))

    def canned(self, statement: Sent) -> Canned:
        if isinstance(statement, SentRows):
            return self.table.get(statement.table, WRITE)
        return self.table.get(statement.text, ONE) if isinstance(statement, SentSql) else WRITE

    def note(self, request: Request) -> int | None:
        """Record a request; return the number of rows that it brings."""
        if not isinstance(request.statement, SentRows):
            self.requests.append(request)
            return None
        stream = request.statement.stream
        if not isinstance(stream, bytes):
            self.rows.append(request)
            return None
        stream = fitted(stream, self.columns, 1 << 20)
        self.rows.append(request)
        return int(pa.ipc.open_stream(stream).read_all().num_rows)

    async def execute(self, request: Request) -> Answer:
        if self.away is not None:
            raise self.away
        request = await with_bound(request, Inline())
        brought = self.note(request)
        self.started.set()
        canned = self.canned(request.statement)
        try:
            if canned.hold is not None:
                await canned.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        if canned.error is not None:
            raise canned.error
        if self.fate is Fate.REVOKED and (request.user, request.id) in self.revoked:
            why = "it was taken back"
            raise RequestError(FailureKind.APPLICATION, why, error_class=ErrorClass.REVOKED)
        stream = CannedStream(canned.chunks)
        self.streams.append(stream)
        self.finished.append(request.id)
        offset = None if canned.operation_class is OperationClass.QUERY else 7
        outcomes = canned.outcomes if offset else {}
        report = HaReport("a", canned.operation_class, offset, outcomes, 8 if offset else 5)
        return Answer(report, stream, canned.columns, brought or canned.affected_rows)

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        found = self.written.get((user, request_id))
        return None if found is None else partial(self.execute, found)

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        self.revoked.append((user, request_id))
        if self.fate is Fate.REVOKED and (hold := self.table["WRITE"].hold) is not None:
            hold.set()
        return None if self.fate is None else Revoked(7, self.fate, "told")

    async def is_final(self, offset: int) -> bool:
        return self.final

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        self.concerns.append(concern)
        return concern is not WriteConcern.ALL

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        self.needed.append(needed)
        return await self.execute(request)

    async def open_session(
        self,
        session_id: str,
        user: str,
        statements: Sequence[str],
        *,
        afresh: bool,
        rights: Rights = UNBOUNDED,
    ) -> Mapping[str, str]:
        self.sessions[session_id] = (user, tuple(statements), afresh)
        return {"catalog": "spark_catalog", "schema": "default", "time_zone": "UTC"}

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        assert isinstance(request.statement, SentSql)
        fields: dict[str, Json] = {"statement": request.statement.text, "rule": request.user}
        return {**fields, "tree": ["Project"]} if tree else fields

    async def close_session(self, session_id: str, user: str) -> None:
        self.sessions.pop(session_id, None)

    def only_reads(self, request: Request) -> bool | None:
        return self.canned(request.statement).operation_class is OperationClass.QUERY


CLUSTER: dict[str, Json] = {
    "name": "a",
    "url": "http://127.0.0.1:8080",
    "alive": True,
    "direct": True,
    "state": "READY",
    "incarnation": "1",
    "cursor": 118,
    "log_end": 120,
    "lag": 2,
    "in_sync": True,
    "since": "2026-01-01T00:00:00Z",
    "last_update": "2026-01-01T00:00:00Z",
}


class CannedStatus:
    """A HAProc that is ready until the test changes that."""

    def __init__(self) -> None:
        self.ready = Readiness(True, "READY")

    def readiness(self) -> Readiness:
        return self.ready

    def cluster_status(self) -> Mapping[str, Json]:
        return {
            "ring": "demo",
            "cluster": "a",
            "state": self.ready.state,
            "reason": "",
            "undecided": {"offset": 7, "cause": "tables", "what": "t: a has 1, b has 2"},
            "copy_failed": None,
            "incarnation": "1",
            "since": "2026-01-01T00:00:00Z",
            "log_end": 120,
            "cursor": 118,
            "lag": 2,
            "recovery": {
                "applied": 0,
                "remaining": 0,
                "rate_per_s": 0.0,
                "seconds_left": 0.0,
                "replay_s": 0.0,
                "copy_s": None,
                "copy_is_faster": False,
            },
            "in_sync": ["a"],
            "high_watermark": 118,
            "transport": {
                "configured": "redis",
                "in_use": "mesh",
                "reason": "no answer",
                "since": "2026-01-01T00:00:00Z",
                "peers": {"b": "mesh"},
            },
            "clusters": [CLUSTER],
        }


POSITION: dict[str, Json] = {
    "position": "stuck",
    "blocked_by": None,
    "together": None,
    "attempts": 8,
    "error": "disk full",
}
ADVICE: dict[str, Json] = {"allowed": True, "text": "it is tried again"}


class CannedOperators:
    """A cluster stuck at offset 7."""

    def __init__(self) -> None:
        self.done: list[tuple[str | int, ...]] = []
        self.error: RequestError | None = None
        self.backup_states = ["done"]

    def queue(self, start: int, count: int) -> Mapping[str, Json]:
        line: dict[str, Json] = {"offset": 7, "head": True, "class": "asynchronous"}
        line |= {"kind": "update", "reads": [], "writes": ["t"], "origin": "b", "age_s": 61}
        self.done.append(("queue", start, count))
        return {
            "cluster": "a",
            "state": "STUCK",
            "reason": "disk full",
            "cursor": 7,
            "read_to": 9,
            "more": False,
            "operations": [{**line, **POSITION}],
        }

    async def show(self, offset: int) -> Mapping[str, Json]:
        self._raise()
        fields: dict[str, Json] = {"cluster": "a", "offset": offset, "operation": {"sql": "UPDATE"}}
        advice: dict[str, Json] = {"retry": ADVICE, "skip": ADVICE, "revoke": ADVICE}
        return {**fields, **POSITION, "outcome": None, **advice, "unable": ["b"]}

    async def retry(self, cluster: str, offset: int) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("retry", cluster, offset))
        return {"cluster": cluster, "offset": offset, "done": "tried"}

    async def skip(self, cluster: str, offset: int, reason: str) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("skip", cluster, offset, reason))
        fields: dict[str, Json] = {"cluster": cluster, "offset": offset, "recorded_at": 9}
        return {**fields, "status": "skipped", "state": "DIVERGED", "reason": "verify"}

    async def revoke(
        self, offset: int, reason: str, without: Collection[str]
    ) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("revoke", offset, reason, *without))
        status = "revoked" if "c" in without else "undecided"
        return {"offset": offset, "status": status, "text": "c does not answer"}

    def backup(self, cluster: str, destination: str) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("backup", cluster, destination))
        return self.backup_status()

    def backup_status(self) -> Mapping[str, Json]:
        state = self.backup_states[0]
        if len(self.backup_states) > 1:
            del self.backup_states[0]
        fields: dict[str, Json] = {"cluster": "a", "state": state, "destination": "s3a://b/x"}
        counts: dict[str, Json] = {"tables": 2, "tables_done": 1, "files": 3, "bytes": 4096}
        return {**fields, **counts, "offset": 12, "message": "disk full"}

    async def restore(
        self, cluster: str, source: str, offset: int, *, verify: bool
    ) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("restore", cluster, source, offset, verify))
        return {"cluster": cluster, "state": "asked", "offset": 12}

    async def verify(self, trusted: str = "") -> Mapping[str, Json]:
        self._raise()
        if trusted:
            self.done.append(("verify", trusted))
        return {"marker": 10}

    async def verification(self, marker: int) -> Mapping[str, Json]:
        self._raise()
        clusters: dict[str, Json] = {"a": {"finding": "equal", "reason": "", "foreign": []}}
        tables: dict[str, Json] = {"t": {"a": "equal"}}
        fields: dict[str, Json] = {"marker": marker, "by": "a", "trusted": "", "complete": True}
        differing: dict[str, Json] = {"u": {"a": "2 rows, sum 1", "b": "absent"}}
        return {**fields, "clusters": clusters, "tables": tables, "differing": differing}

    async def rebuild(self, cluster: str, donor: str, way: str) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("rebuild", cluster, donor, way))
        return {"cluster": cluster, "donor": donor}

    def withdraw(self, cluster: str) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("withdraw", cluster))
        return {"cluster": cluster}

    async def repair(self, cluster: str, table: str, donor: str) -> Mapping[str, Json]:
        self._raise()
        self.done.append(("repair", cluster, table, donor))
        return {"cluster": cluster, "table": table, "offset": 11, "tables": [table]}

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


class CannedDrains:
    """A cluster that may be drained, with a request and a result left."""

    def __init__(self) -> None:
        self.drained = False
        self.forced = False
        self.error: RequestError | None = None

    def drain(self, cluster: str, *, force: bool) -> Mapping[str, Json]:
        if self.error is not None:
            raise self.error
        self.drained, self.forced = True, force
        return self.drain_status()

    def undrain(self, cluster: str) -> Mapping[str, Json]:
        self.drained = False
        return self.drain_status()

    def drain_status(self) -> Mapping[str, Json]:
        state = "DRAINING" if self.drained else "READY"
        left: dict[str, Json] = {"under_way": 1, "unfetched": 2}
        return {"cluster": "a", "state": state, "reason": "", "drained": self.drained, **left}


class CannedPeers:
    """Answers peers."""

    def __init__(self) -> None:
        self.received: list[tuple[int, str, float]] = []
        self.seen: list[tuple[str, float]] = []
        self.hold: asyncio.Event | None = None

    async def apply_now(self, offset: int, operation_id: str, timeout_s: float) -> PeerOutcome:
        self.received.append((offset, operation_id, timeout_s))
        if self.hold is not None:
            await self.hold.wait()
        return PeerOutcome("applied")

    async def outcome(self, offset: int) -> PeerOutcome:
        return PeerOutcome("failed", False, "E", "42000", f"at {offset}")

    async def progress(self, seen: str, timeout_s: float) -> PeerProgress:
        self.seen.append((seen, timeout_s))
        return PeerProgress("s2", State.READY, 9, frozenset({5}))

    def latencies(self, start: int, end: int) -> Mapping[int, int]:
        return {offset: 10 * offset for offset in range(start, end)}

    def status(self) -> PeerStatus:
        at = (3, 3, 0)
        return PeerStatus("b", State.READY, "", False, None, "b1", *at, True, (5,))

    async def copy(self, question: CopyQuestion) -> tuple[CopyAnswer, bytes]:
        if question.do != "read":
            raise ValueError("nothing to ask for")
        return CopyAnswer("ok", message=question.path), b"bytes" * question.marker


class CannedArchive:
    """The applied operations, as one page."""

    def __init__(self) -> None:
        self.received: list[tuple[int, int]] = []
        self.below: list[int] = []

    async def page(self, start: int, rows_max: int) -> Page:
        self.received.append((start, rows_max))
        return Page(b"rows", 2, start, start + 5, start + 9)

    async def archived(self, below: int) -> None:
        self.below.append(below)


class CannedMembers:
    """Records the messages of the peer b."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.reports: list[ClusterReport] = []

    def knows(self, peer: str) -> bool:
        return peer == "b"

    def heartbeat(self, beat: Beat) -> None:
        self.beats.append(beat)

    def report(self, report: ClusterReport) -> None:
        self.reports.append(report)


class CannedAdmission:
    """Admits any cluster that wants to join."""

    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.received: list[tuple[str, ...]] = []
        self.error: RequestError | None = None

    def describe(self) -> Mapping[str, Json]:
        return {"since_offset": None, "names": [*self.names], "disagreement": ""}

    async def join(self, name: str, peer: Address, client_url: str) -> Mapping[str, Json]:
        self.received.append(("join", name, str(peer), client_url))
        if self.error is not None:
            raise self.error
        self.names.append(name)
        return {"cluster": name, **self.describe()}

    async def leave(self, name: str) -> Mapping[str, Json]:
        self.received.append(("leave", name))
        self.names.remove(name)
        return {"cluster": name, **self.describe()}


class CannedSettings:
    """A server with known settings."""

    def settings(self) -> Mapping[str, Json]:
        return {"cluster": "a", "settings": {"version.spark": "4.2.1", "spark.sql.x": None}}
