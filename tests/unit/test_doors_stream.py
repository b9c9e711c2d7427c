"""The streaming answer: one valid Arrow stream, backpressure, and no complete-looking rest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from haproc.classify.model import OperationClass
from haproc.doors.apps import REGISTRY
from haproc.engine.arrow import FrameError, continuation, joined, opening
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, refused
from haproc.route.model import Answer, HaReport, Request
from haproc.route.streams import Collected
from haproc.statements.request import Cutter
from tests.unit.canned import ONE, Canned, chunks_of
from tests.unit.door_rig import ARROW, STATEMENTS, WAIT_S, Rig, door, until

NUMBERS = [pa.table({"n": pa.array(range(i * 100, i * 100 + 100), pa.int64())}) for i in range(3)]
BIG = [pa.table({"s": ["x" * (1 << 20)]}) for _ in range(64)]


def stream(rig: Rig, **body: Any) -> Any:
    return rig.http.post(rig.url + STATEMENTS, json=body, headers=ARROW)


async def test_chunks_arrive_as_one_arrow_stream(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        async with stream(rig, statement="MANY", wait_timeout="0s", format="JSON_ARRAY") as answer:
            assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
            assert json.loads(answer.headers["HAProc-Report"])["class"] == "query"
            data = await answer.read()
        with pa.ipc.open_stream(data) as reader:
            assert reader.read_all()["n"].to_pylist() == list(range(300))
        assert rig.service.streams[0].closed.is_set()


async def test_stream_without_chunks_is_an_empty_stream(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["NONE"] = Canned([], OperationClass.SESSION)
        async with stream(rig, statement="NONE") as answer:
            assert pa.ipc.open_stream(await answer.read()).read_all().num_rows == 0


async def test_streamed_answer_of_a_write_has_a_content_length(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        report = HaReport("a", OperationClass.ASYNCHRONOUS, 7)

        async def execute(request: Request) -> Answer:
            return Answer(report, Collected(()), affected_rows=1)

        rig.service.execute = execute  # type: ignore[method-assign]
        async with stream(rig, statement="INSERT INTO t VALUES (1)") as answer:
            assert json.loads(answer.headers["HAProc-Report"])["log_offset"] == 7
            data = await answer.read()
            assert int(answer.headers["Content-Length"]) == len(data)
        assert pa.ipc.open_stream(data).read_all().num_rows == 0


@pytest.mark.parametrize("headers", [ARROW, {}], ids=["streamed", "whole"])
async def test_refused_request_leaves_no_garbage_for_the_collector(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["NO"] = Canned(error=refused(ErrorClass.UNCLASSIFIED, "no"))

        async def ask() -> None:
            body = {"statement": "NO"}
            async with rig.http.post(rig.url + STATEMENTS, json=body, headers=headers) as answer:
                assert answer.status == 400

        await ask()
        gc.collect()
        gc.disable()
        try:
            garbage: list[int] = []
            while not garbage or (
                garbage[-1] and len(garbage) < 5
            ):  # once, another thread may have left it
                for _ in range(3):
                    await ask()
                garbage.append(gc.collect())
            assert garbage[-1] == 0, garbage
        finally:
            gc.enable()


@pytest.mark.parametrize(("limit", "rows"), [("row_limit", 150), ("byte_limit", 100)])
async def test_stream_is_truncated_at_the_limits(tmp_path: Path, limit: str, rows: int) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        value = {"row_limit": 150, "byte_limit": 800}[limit]
        async with stream(rig, statement="MANY", **{limit: value}) as answer:
            data = await answer.read()
        taken = pa.ipc.open_stream(data).read_all().num_rows
        assert taken == rows if limit == "row_limit" else 0 < taken < 300
        assert rig.service.streams[0].closed.is_set()


async def test_stream_that_fails_midway_never_looks_complete(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        lost = EngineError(ErrorKind.AVAILABILITY, "connection lost")
        rig.service.table["MANY"] = Canned([*chunks_of(*NUMBERS), lost])
        async with stream(rig, statement="MANY") as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 0)
        assert rig.service.streams[0].closed.is_set()


async def test_stream_that_fails_before_the_first_byte_is_an_error_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        wrong = EngineError(ErrorKind.APPLICATION, "1/0", error_class="DIVIDE_BY_ZERO")
        rig.service.table["BAD"] = Canned([wrong])
        async with stream(rig, statement="BAD") as answer:
            assert answer.status == 422
            assert (await answer.json())["error_class"] == "DIVIDE_BY_ZERO"


async def test_stream_of_a_slow_reader_holds_the_cluster_back(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["BIG"] = Canned(chunks_of(*BIG))
        async with stream(rig, statement="BIG") as answer:
            await answer.content.readexactly(1000)
            canned = rig.service.streams[0]
            before = -1
            async with asyncio.timeout(WAIT_S):
                while before != canned.taken:
                    before = canned.taken
                    await asyncio.sleep(0.05)
            assert canned.taken < len(BIG) // 2
            rest = await answer.read()
        assert len(rest) > 63 << 20
        assert canned.taken == len(BIG)


async def test_stream_of_a_stalled_reader_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.doors.clients.answers.STALL_S", 0.2)
    async with door(tmp_path) as rig:
        rig.service.table["BIG"] = Canned(chunks_of(*BIG))
        async with stream(rig, statement="BIG") as answer:
            await until(lambda: any(each.closed.is_set() for each in rig.service.streams))
            with pytest.raises(aiohttp.ClientError):
                await answer.read()


async def test_stream_of_a_reader_that_left_closes_the_result(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["BIG"] = Canned(chunks_of(*BIG))
        async with stream(rig, statement="BIG") as answer:
            await answer.content.readexactly(1000)
            answer.close()
        await until(lambda: rig.service.streams[0].closed.is_set())
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 0)
        assert rig.service.streams[0].taken < len(BIG)


@pytest.mark.parametrize("sent", [False, True])
async def test_stream_is_cancelled_by_its_id(tmp_path: Path, sent: bool) -> None:
    async with door(tmp_path) as rig:
        never = asyncio.Event()
        first = chunks_of(*NUMBERS[:1]) if sent else []
        rig.service.table["SLOW"] = Canned([*first, never])

        async def read() -> int:
            async with stream(rig, statement="SLOW", request_id="r1") as answer:
                await answer.read()
                return int(answer.status)

        reading = asyncio.create_task(read())
        await until(lambda: bool(rig.service.streams))
        state = (await rig.get(f"{STATEMENTS}/r1"))["status"]["state"]
        assert state == "RUNNING"
        if sent:
            await until(lambda: rig.service.streams[0].taken == 1)
        assert await rig.status_of("post", f"{STATEMENTS}/r1/cancel") == 200
        if sent:
            with pytest.raises(aiohttp.ClientPayloadError):
                await reading
        else:
            assert await reading == 400
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 0)
        assert rig.service.streams[0].closed.is_set()
        await rig.get(f"{STATEMENTS}/r1", 404)


async def test_stream_cancelled_before_its_first_row_is_answered_400(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=asyncio.Event())
        reading = asyncio.create_task(_status_of(rig, statement="SLOW", request_id="r1"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        assert await rig.status_of("post", f"{STATEMENTS}/r1/cancel") == 200
        assert await reading == (400, "HAPROC_CANCELED")


async def test_cancel_ends_a_repeated_request_that_waits_for_the_first(tmp_path: Path) -> None:
    """A client whose connection broke sends the request again, maybe before the first has ended."""
    async with door(tmp_path) as rig:
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=asyncio.Event())
        first = asyncio.create_task(_status_of(rig, statement="SLOW", request_id="r1"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        again = asyncio.create_task(_status_of(rig, statement="SLOW", request_id="r1"))
        await until(lambda: rig.app[REGISTRY].request_admission._waiting.taken == 2)
        _, answer = await rig.ask("post", f"{STATEMENTS}/r1/cancel")
        assert answer["became"] == "canceled"
        assert await first == await again == (400, "HAPROC_CANCELED")


async def _status_of(rig: Rig, **body: Any) -> tuple[int, str]:
    async with stream(rig, **body) as answer:
        return answer.status, (await answer.json())["error_class"]


def test_joined_streams_hold_all_batches() -> None:
    streams = [chunk.data for chunk in chunks_of(*NUMBERS, NUMBERS[0].slice(0, 0))]
    assert pa.ipc.open_stream(joined(streams)).read_all().num_rows == 300
    assert joined(streams[:1]) is streams[0]


def test_joined_streams_without_end_markers_lose_nothing() -> None:
    table = pa.table({"n": pa.array([0xFFFFFFFF] * 16, pa.uint64())})
    whole = chunks_of(table)[0].data
    stump = whole[:-8]  # ends in data that looks like an end marker
    assert bytes(opening(whole)) == bytes(opening(stump)) == stump
    assert pa.ipc.open_stream(joined([stump, stump])).read_all().num_rows == 32


@given(st.binary(max_size=200))
def test_frame_reading_of_any_bytes_refuses_or_reads_them(data: bytes) -> None:
    for cut in (opening, continuation):
        try:
            assert len(cut(data)) <= len(data)
        except FrameError:
            continue


@given(st.binary(max_size=40), st.integers(0, 400))
def test_joining_of_a_damaged_stream_refuses_or_reads_it(noise: bytes, at: int) -> None:
    data = chunks_of(NUMBERS[0])[0].data
    damaged = data[:at] + noise + data[at + len(noise) :]
    with contextlib.suppress(FrameError):
        joined([data, damaged])


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 5000),
)
@example([1, 0], None, 288)
def test_cutter_returns_a_prefix_within_the_limits(
    sizes: list[int], rows_max: int | None, bytes_max: int | None
) -> None:
    tables: list[pa.Table] = []
    for size in sizes:
        start = sum(table.num_rows for table in tables)
        tables.append(pa.table({"n": pa.array(range(start, start + size), pa.int64())}))
    cutter = Cutter(rows_max, bytes_max)
    taken: list[Chunk] = []
    for chunk in chunks_of(*tables):
        part = cutter.take(chunk)
        if part is not None:
            taken.append(part)
        if cutter.truncated:
            break
    values = [v for c in taken for v in pa.ipc.open_stream(c.data).read_all()["n"].to_pylist()]
    assert values == list(range(len(values)))
    assert len(values) == sum(c.rows for c in taken) <= (rows_max or sum(sizes))
    assert cutter.truncated == (len(values) < sum(sizes))
    assert taken, "the schema always gets through"
    if bytes_max is not None:
        assert len(values) == min(sum(sizes), bytes_max // 8, rows_max or sum(sizes))


def test_aiohttp_request_has_a_transport() -> None:
    """Breaking off an answer needs the transport of the request."""
    assert hasattr(web.BaseRequest, "transport")


async def test_report_header_of_a_stream_stays_short(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        outcomes = {f"cluster-{i}": "failed: ü\n" * 1000 for i in range(10)}
        rig.service.table["W"] = Canned(ONE.chunks, OperationClass.SYNCHRONOUS, outcomes=outcomes)
        async with stream(rig, statement="W") as answer:
            header = answer.headers["HAProc-Report"]
            assert len(header) < 8000 and "\n" not in header
            assert json.loads(header)["outcomes"].keys() == outcomes.keys()
