"""Freshness through the doors: fields and headers, tokens, and queries forwarded to peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from haproc.classify.model import OperationClass
from haproc.config.model import Consistency, Reads
from haproc.config.sections import Limits
from haproc.doors.clients.statement_request import read_freshness
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Chunk
from haproc.failure import FailureKind, RequestError
from haproc.membership.connections import PeerDoors
from haproc.membership.peers import PeerBusyError, PeerUnavailableError
from haproc.route import forward
from haproc.route.forward import BrokenPiecesError, HttpForwarding
from haproc.route.model import Freshness, Request, SentSql
from tests.unit.canned import Canned, chunks_of
from tests.unit.door_rig import ARROW, SECRET, STATEMENTS, WAIT_S, Rig, door, make_config

TABLES = [pa.table({"n": pa.array(range(i * 10, i * 10 + 10), pa.int64())}) for i in range(3)]

# -- what a request says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "headers", "expected"),
    [
        ({}, {}, Freshness(Consistency.SESSION, 7)),
        ({"consistency": None, "after_offset": None}, {}, Freshness(Consistency.SESSION, 7)),
        ({"consistency": "linearizable"}, {}, Freshness(Consistency.LINEARIZABLE, 7)),
        (
            {"consistency": "bounded", "acceptable_offset_lag": 0, "after_offset": 9},
            {},
            Freshness(Consistency.BOUNDED, 0, 9),
        ),
        (
            {"after_offset": 9, "seen": {"b": 4, "a": 12}},
            {},
            Freshness(Consistency.SESSION, 7, 9, (("a", 12), ("b", 4))),
        ),
        (
            {},
            {
                "HAProc-Consistency": "bounded",
                "HAProc-Acceptable-Offset-Lag": "3",
                "HAProc-After-Offset": "5",
            },
            Freshness(Consistency.BOUNDED, 3, 5),
        ),
        ({"consistency": "any"}, {"HAProc-Consistency": "bounded"}, Freshness(Consistency.ANY, 7)),
    ],
)
def test_freshness_is_read_from_fields_then_headers_then_the_configuration(
    given: dict[str, Any], headers: dict[str, str], expected: Freshness
) -> None:
    assert read_freshness(given, headers, Reads(Consistency.SESSION, 7)) == expected


@pytest.mark.parametrize(
    ("given", "headers", "reason"),
    [
        ({"consistency": "strong"}, {}, "consistency is 'strong'"),
        ({}, {"HAProc-Consistency": "Any"}, "consistency is 'Any'"),
        ({"acceptable_offset_lag": -1}, {}, "acceptable_offset_lag must be at least 0"),
        ({"after_offset": 1.5}, {}, "after_offset must be a whole number"),
        ({"after_offset": True}, {}, "after_offset must be a whole number"),
        ({}, {"HAProc-After-Offset": "-1"}, "HAProc-After-Offset must be a whole number"),
        ({}, {"HAProc-Acceptable-Offset-Lag": "1e3"}, "HAProc-Acceptable-Offset-Lag must be"),
        ({"seen": [1]}, {}, "seen must be an object"),
        ({"seen": {"a": "1"}}, {}, "a must be a whole number"),
        ({"seen": {str(n): n for n in range(65)}}, {}, "at most 64 clusters"),
    ],
)
def test_unusable_freshness_is_refused(
    given: dict[str, Any], headers: dict[str, str], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        read_freshness(given, headers, Reads())
    assert caught.value.kind is FailureKind.REFUSED


async def test_freshness_reaches_the_service_and_tokens_are_returned(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        requested: dict[str, Any] = {"consistency": "session", "after_offset": 3, "seen": {"b": 4}}
        answer = await rig.post(statement="SELECT 1", **requested)
        assert answer["ha"]["after_offset"] == 5
        expected = Freshness(Consistency.SESSION, Reads().acceptable_offset_lag, 3, (("b", 4),))
        assert rig.service.requests[0].freshness == expected
        headers = {**ARROW, "HAProc-Consistency": "linearizable"}
        body = {"statement": "INSERT"}
        url = rig.url + STATEMENTS
        async with rig.http.post(url, json=body, headers=headers) as response:
            assert '"after_offset":8' in response.headers["HAProc-Report"]
        assert rig.service.requests[1].freshness.level is Consistency.LINEARIZABLE


async def test_kept_answer_is_returned_only_for_the_same_freshness(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        requested = {"statement": "SELECT 1", "request_id": "r"}
        first = await rig.post(**requested, consistency="session", after_offset=3)
        assert await rig.post(**requested, consistency="session", after_offset=3) == first
        for fresher in ({"consistency": "linearizable"}, {"consistency": "session"}):
            answer = await rig.post(409, **requested, **fresher)
            assert answer["error_class"] == "HAPROC_REQUEST_ID_REUSED"
        assert len(rig.service.requests) == 1


# -- from peer to peer -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def peer(
    tmp_path: Path, limits: Limits | None = None
) -> AsyncIterator[tuple[Rig, HttpForwarding]]:
    """Open the operator door of cluster a, and the client with which b reaches it."""
    async with door(tmp_path, operator=True, limits=limits) as rig:
        doors = PeerDoors(make_config(tmp_path, peer_port=rig.listener.port), "b")
        try:
            yield rig, HttpForwarding(doors)
        finally:
            await doors.aclose()


def request(statement: str = "SELECT n") -> Request:
    freshness = Freshness(Consistency.BOUNDED, 3)
    return Request(
        "r1", SentSql(statement), "f", user="ann", catalog="c", schema="s", freshness=freshness
    )


async def rows_of(chunks: Any) -> list[int]:
    found: list[int] = []
    async for chunk in chunks:
        table = pa.ipc.open_stream(chunk.data).read_all()
        assert table.num_rows == chunk.rows
        found += table.column("n").to_pylist()
    return found


async def test_forwarded_query_runs_once_as_its_user_and_reports_the_answering_cluster(
    tmp_path: Path,
) -> None:
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned(chunks_of(*TABLES))
        for _ in range(2):
            answer = await forwarding.query("a", request(), 17, 5.0)
            assert await rows_of(answer.result) == list(range(30))
            await answer.result.aclose()
        report = answer.report
        assert (report.cluster, report.operation_class) == ("a", OperationClass.QUERY)
        assert (report.after_offset, report.offset) == (5, None)
        requested = rig.service.requests[0]
        assert (requested.id, requested.statement, requested.user) == (
            "r1",
            SentSql("SELECT n"),
            "ann",
        )
        assert (requested.catalog, requested.schema, requested.timeout_s) == ("c", "s", 5.0)
        assert requested.freshness == Freshness()  # it is to run here, or nowhere
        assert rig.service.needed == [17, 17]


async def test_forwarded_result_is_held_back_while_its_reader_pauses(tmp_path: Path) -> None:
    big = chunks_of(pa.table({"n": pa.array(range(1 << 17), pa.int64())}))
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned(big * 64)
        answer = await forwarding.query("a", request(), 0, 5.0)
        chunks = aiter(answer.result)
        await anext(chunks)
        (stream,) = rig.service.streams
        before = -1
        while stream.taken != before:  # until the peer takes no more of it
            before = stream.taken
            await asyncio.sleep(0.05)
        assert stream.taken < 40
        await answer.result.aclose()
        async with asyncio.timeout(WAIT_S):
            await stream.closed.wait()  # the query ended there, too


async def test_forwarded_query_without_a_waiting_client_is_cancelled_at_the_peer(
    tmp_path: Path,
) -> None:
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned(hold=asyncio.Event())
        requested = asyncio.ensure_future(forwarding.query("a", request(), 0, 5.0))
        async with asyncio.timeout(WAIT_S):
            await rig.service.started.wait()
            requested.cancel()
            while not rig.service.cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_application_error_of_a_forwarded_query_is_passed_on(tmp_path: Path) -> None:
    wrong = RequestError(FailureKind.APPLICATION, "no table", error_class="X", sqlstate="42P01")
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned(error=wrong)
        with pytest.raises(RequestError, match="no table") as caught:
            await forwarding.query("a", request(), 0, 5.0)
        assert (caught.value.error_class, caught.value.sqlstate) == ("X", "42P01")


@pytest.mark.parametrize("kind", [FailureKind.AVAILABILITY, FailureKind.REFUSED])
async def test_peer_that_cannot_answer_a_query_is_unavailable(
    tmp_path: Path, kind: FailureKind
) -> None:
    away = RequestError(kind, "not now", error_class="X")
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned(error=away)
        with pytest.raises(PeerUnavailableError, match="not now"):
            await forwarding.query("a", request(), 0, 5.0)
        nowhere = PeerDoors(make_config(tmp_path, peer_port=1), "b")
        with pytest.raises(PeerUnavailableError, match="peer a"):
            await HttpForwarding(nowhere).query("a", request(), 0, 5.0)
        await nowhere.aclose()


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (
            EngineError(ErrorKind.APPLICATION, "divided", error_class="D", sqlstate="22012"),
            FailureKind.APPLICATION,
        ),
        (EngineError(ErrorKind.AVAILABILITY, "Spark died"), FailureKind.AVAILABILITY),
    ],
)
async def test_forwarded_result_that_fails_midway_raises_the_error(
    tmp_path: Path, failure: EngineError, kind: FailureKind
) -> None:
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned([*chunks_of(TABLES[0]), failure])
        answer = await forwarding.query("a", request(), 0, 5.0)
        chunks = aiter(answer.result)
        assert (await anext(chunks)).rows == 10
        with pytest.raises(RequestError, match=failure.message) as caught:
            await anext(chunks)
        assert caught.value.kind is kind
        await answer.result.aclose()


async def test_forwarded_result_that_breaks_off_is_an_availability_error(tmp_path: Path) -> None:
    async with peer(tmp_path) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned([*chunks_of(TABLES[0]), asyncio.Event()])
        answer = await forwarding.query("a", request(), 0, 5.0)
        chunks = aiter(answer.result)
        await anext(chunks)
        rest = asyncio.ensure_future(anext(chunks))
        await rig.listener.aclose()
        with pytest.raises(RequestError, match="the result from cluster a broke off") as caught:
            await rest
        assert caught.value.kind is FailureKind.AVAILABILITY
        await answer.result.aclose()


async def test_forwarded_queries_count_toward_the_statement_limit_of_the_peer(
    tmp_path: Path,
) -> None:
    # They do not wait in line: their own HAProc keeps a place for them, for which others wait.
    async with peer(tmp_path, Limits(statements_max=1)) as (rig, forwarding):
        rig.service.table["SELECT n"] = Canned([*chunks_of(TABLES[0]), asyncio.Event()])
        first = await forwarding.query("a", request(), 0, 5.0)
        with pytest.raises(PeerBusyError, match="statements_max"):
            await forwarding.query("a", request(), 0, 5.0)
        await first.result.aclose()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"needed": None}, "at `$.needed`"),
        ({"needed": -1}, "at `$.needed`"),
        ({"user": ""}, "at `$.user`"),
        ({"timeout_s": 0}, "at `$.timeout_s`"),
    ],
)
async def test_forwarded_query_that_cannot_be_read_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    body = {"request_id": "r", "statement": "SELECT 1", "user": "u", "needed": 1, "timeout_s": 1}
    async with door(tmp_path, operator=True) as rig:
        path = "/ha/v1/query"
        got, answer = await rig.ask("post", path, json={**body, **change}, headers=SECRET)
        assert got == 400
        assert reason in answer["message"]
        assert await rig.status_of("post", path, json=body) == 401
        assert rig.service.requests == []


def test_invalid_frames_of_a_forwarded_result_are_refused() -> None:
    head = forward.chunk_head(Chunk(b"123", 7))
    assert forward.read_head(head) == (forward.FrameKind.CHUNK, 7, 3)
    with pytest.raises(BrokenPiecesError):
        forward.read_head(b"\x09" + head[1:])
    with pytest.raises(BrokenPiecesError):
        forward.read_head(head[:9] + b"\xff" * 8)
    with pytest.raises(BrokenPiecesError):
        forward.read_error(b'{"kind": "odd"}')


async def test_metrics_count_reads(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.metrics.count_read("bounded")
        rig.metrics.read_waited("session", 0.1)
        rig.metrics.read_forwarded("b")
        async with rig.http.get(rig.url + "/metrics") as response:
            text = await response.text()
        assert 'haproc_queries_total{consistency="bounded"} 1.0' in text
        assert 'haproc_read_wait_seconds_count{consistency="session"} 1.0' in text
        assert 'haproc_queries_forwarded_total{peer="b"} 1.0' in text
