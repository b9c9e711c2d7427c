"""Tests of row bodies larger than one record: on disk, bounded, checked whole before any write."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gzip
import io
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.doors.apps import REGISTRY, SPOOLS
from haproc.doors.http import bodies
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Column
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.route.model import SentRows
from haproc.route.rows.forms import ARROW, Form, FormKind
from haproc.route.spooled import SpooledBody, Spools
from tests.unit.canned import WRITE
from tests.unit.door_rig import WAIT_S, Rig, door, until

ROWS = {"Content-Type": "application/vnd.apache.arrow.stream"}
SMALL = Limits(operation_bytes_max=100_000, staged_bytes_max=4 << 20, part_bytes_max=10_000)
COLUMNS = [Column("n", "bigint"), Column("s", "string", nullable=False)]
TABLE = pa.table({"N": range(30_000), "S": [f"text {n}" for n in range(30_000)]})


def encoded(*tables: pa.Table, rows: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue().to_pybytes())


async def spooled(
    spools: Spools, data: bytes, user: str = "ada", form: Form = ARROW
) -> SpooledBody:
    body = await spools.begin(user, None, form)
    for begin in range(0, len(data), 50_000):
        await body.append_bytes(data[begin : begin + 50_000])
    await body.complete()
    return body


class Tidy(Spools):
    """Releases at the end of a test the bodies that the test did not release."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        super().__init__(folder, Shares(10 << 20, 6 << 20), limits)
        self.begun: list[SpooledBody] = []

    async def begin(self, user: str, size: int | None, form: Form = ARROW) -> SpooledBody:
        self.begun.append(await super().begin(user, size, form))
        return self.begun[-1]

    def tidy(self) -> None:
        for body in self.begun:
            while body._holders > 0:
                body.release()
        assert self.shares.taken == 0


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Spools]:
    made = Tidy(tmp_path / "bodies", SMALL)
    yield made
    made.tidy()


async def test_body_returns_its_rows_in_pieces_at_each_iteration(spools: Spools) -> None:
    body = await spooled(spools, encoded(TABLE))
    fit = await body.fit(COLUMNS)
    assert pa.ipc.open_stream(fit.schema).read_all().equals(TABLE.slice(0, 0))
    assert fit.few is None, "more than one record holds"
    for _ in range(2):
        found = [pa.ipc.open_stream(chunk.data).read_all() async for chunk in body]
        assert pa.concat_tables(found).equals(TABLE)
    assert list((spools_folder(spools)).iterdir()) == [], "the file has no name"
    assert spools.shares.of_user("ada") == body.size
    body.hold()
    body.release()
    assert spools.shares.taken == body.size
    body.release()
    assert spools.shares.taken == 0


def spools_folder(spools: Spools) -> Path:
    return spools._folder


UNTYPED = pa.table({"n": pa.nulls(9_000), "s": ["a" * 20] * 9_000})
NULLS = pa.table({"N": [1], "S": pa.array([None], pa.string())})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encoded(TABLE, NULLS), "column S must not be null"),
        (encoded(TABLE) + b"more", "behind the end of the stream"),
        (encoded(TABLE)[:-3000], "not an Arrow IPC stream"),
        (encoded(TABLE.rename_columns(["n", "x"])), "no column x"),
        (encoded(UNTYPED, rows=999), "has no type"),
        (encoded(TABLE, rows=30_000), "a record batch has more than 100000 bytes"),
        (b"nothing at all", "not an Arrow IPC stream"),
    ],
)
async def test_misfit_anywhere_refuses_the_whole_body(
    spools: Spools, data: bytes, reason: str
) -> None:
    body = await spooled(spools, data)
    with pytest.raises(RequestError, match=reason) as raised:
        await body.fit(COLUMNS)
    assert (raised.value.error_class, raised.value.kind) == (
        ErrorClass.ROWS_MISFIT,
        FailureKind.REFUSED,
    )


async def test_rows_that_unpack_to_more_than_the_staging_limit_are_refused(tmp_path: Path) -> None:
    limits = Limits(operation_bytes_max=100_000, staged_bytes_max=300_000)
    spools = Tidy(tmp_path, limits)
    body = await spooled(spools, packed())
    with pytest.raises(RequestError, match="300000 bytes unpacked"):
        await body.fit(COLUMNS)
    spools.tidy()


def packed() -> bytes:
    same = pa.array(["a" * 50]).dictionary_encode()
    batch = pa.record_batch({"s": pa.DictionaryArray.from_arrays([0] * 1000, same.dictionary)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(20):
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


async def test_bodies_take_at_most_their_users_share_of_the_disk(spools: Spools) -> None:
    first = await spooled(spools, bytes(4 << 20))
    with pytest.raises(RequestError, match="those of ada") as raised:
        await spooled(spools, bytes(3 << 20))
    assert raised.value.kind is FailureKind.AVAILABILITY
    with pytest.raises(RequestError, match="larger than 4194304") as raised:
        await spools.begin("ben", (4 << 20) + 1)
    assert raised.value.error_class == ErrorClass.TOO_LARGE
    first.release()
    await spools.begin("ada", 3 << 20)


async def test_full_disk_gives_an_availability_error(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: SpooledBody, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpooledBody, "_put", full)
    with pytest.raises(RequestError, match="No space left") as raised:
        await spooled(spools, bytes(2 << 20))
    assert raised.value.kind is FailureKind.AVAILABILITY


# -- through the door ----------------------------------------------------------------------------


def taken(rig: Rig) -> int:
    return rig.app[SPOOLS].shares.taken


async def post(rig: Rig, data: Any, query: str = "") -> tuple[int, dict[str, Any]]:
    url = f"{rig.url}/api/ha/tables/t/rows{query}"
    data = io.BytesIO(data) if isinstance(data, bytes) else data
    async with rig.http.post(url, data=data, headers=ROWS) as response:
        return response.status, await response.json()


async def in_chunks(data: bytes, hold: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 10_000):
        yield data[begin : begin + 10_000]
    if hold is not None:
        await hold.wait()


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_body_is_passed_to_the_service_on_disk_and_released(
    tmp_path: Path, chunked: bool
) -> None:
    data = encoded(TABLE)
    async with door(tmp_path, limits=SMALL) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)
        send = asyncio.create_task(post(rig, in_chunks(data) if chunked else data, "?request_id=r"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        (request,) = rig.service.rows
        assert isinstance(request.statement, SentRows)
        assert isinstance(request.statement.stream, SpooledBody)
        assert taken(rig) == len(data)
        hold.set()
        assert (await send)[0] == 200
        assert await rig.app[REGISTRY].request_admission.wait_idle(WAIT_S)
        await until(lambda: taken(rig) == 0)


async def test_small_body_of_unknown_length_is_accepted_and_released(tmp_path: Path) -> None:
    async with door(tmp_path, limits=SMALL) as rig:
        data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
        assert (await post(rig, in_chunks(data)))[0] == 200
        (request,) = rig.service.rows
        assert isinstance(request.statement, SentRows)
        assert isinstance(request.statement.stream, SpooledBody)
        assert taken(rig) == 0


async def test_large_body_is_one_request_by_its_id_and_its_bytes(tmp_path: Path) -> None:
    data, other = encoded(TABLE), encoded(TABLE.slice(1))
    async with door(tmp_path, limits=SMALL) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)
        first = asyncio.create_task(post(rig, data, "?request_id=r"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        assert (await post(rig, other, "?request_id=r"))[0] == 409
        again = asyncio.create_task(post(rig, in_chunks(data), "?request_id=r"))
        hold.set()
        assert ((await first)[0], (await again)[0]) == (200, 200)
        await until(lambda: taken(rig) == 0)


async def test_client_that_disconnects_within_its_body_leaves_nothing(tmp_path: Path) -> None:
    async with door(tmp_path, limits=SMALL) as rig:
        hold = asyncio.Event()
        send = asyncio.create_task(post(rig, in_chunks(encoded(TABLE), hold)))
        await until(lambda: taken(rig) > 300_000)
        send.cancel()
        await asyncio.gather(send, return_exceptions=True)
        await until(lambda: taken(rig) == 0)
        assert not rig.service.rows


async def test_body_without_progress_is_refused_and_a_slow_one_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_READ_S", 1.0)
    monkeypatch.setattr(bodies, "PROGRESS_BYTES", 100_000)

    async def slow(data: bytes) -> AsyncIterator[bytes]:
        for begin in range(0, len(data), 50_000):
            yield data[begin : begin + 50_000]
            await asyncio.sleep(0.1)

    async with door(tmp_path, limits=SMALL) as rig:
        data, begun = encoded(TABLE), time.monotonic()
        assert (await post(rig, slow(data)))[0] == 200
        assert time.monotonic() - begun > 1, "longer than the patience with one piece"
        status, answer = await post(rig, in_chunks(data, asyncio.Event()))
        assert (status, answer["error_class"]) == (408, "HAPROC_BODY_TIMEOUT")
        await until(lambda: taken(rig) == 0)


async def test_body_beyond_its_users_share_is_refused_as_busy(tmp_path: Path) -> None:
    limits = Limits(
        operation_bytes_max=100_000, staged_bytes_max=4 << 20, spooled_bytes_max=1 << 20
    )
    async with door(tmp_path, limits=limits) as rig:
        status, answer = await post(rig, bytes(2 << 20))
        assert (status, answer["error_class"]) == (429, "HAPROC_BUSY")


# -- other forms ---------------------------------------------------------------------------------


CSV = Form(FormKind.CSV)


async def test_few_rows_of_csv_make_one_record(spools: Spools) -> None:
    body = await spooled(spools, b'n,s\n1,a\n2,""\n', form=CSV)
    found = await body.fit(COLUMNS)
    assert found.few is not None
    assert pa.ipc.open_stream(found.few).read_all().to_pylist() == [
        {"n": 1, "s": "a"},
        {"n": 2, "s": ""},
    ]
    assert pa.ipc.open_stream(found.schema).read_all().num_rows == 0


async def test_many_rows_of_csv_are_returned_in_pieces_at_each_iteration(spools: Spools) -> None:
    data = b"n,s\n" + b"".join(b"%d,text %d\n" % (n, n) for n in range(30_000))
    body = await spooled(spools, data, form=CSV)
    assert (await body.fit(COLUMNS)).few is None
    for _ in range(2):
        assert sum([chunk.rows async for chunk in body]) == 30_000


async def test_parquet_body_is_read_from_disk_with_all_its_rows(spools: Spools) -> None:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=5000)
    body = await spooled(spools, sink.getvalue(), form=Form(FormKind.PARQUET))
    found = await body.fit(COLUMNS)
    assert pa.ipc.open_stream(found.schema).read_all().column_names == ["N", "S"]
    assert sum([chunk.rows async for chunk in body]) == 30_000


async def test_csv_body_is_passed_with_its_form_if_short_or_compressed(
    tmp_path: Path,
) -> None:
    headers = {"Content-Type": "text/csv; charset=UTF-8"}
    async with door(tmp_path, limits=SMALL) as rig:
        url = f"{rig.url}/api/ha/tables/t/rows?request_id=r&columns=n&null=&first_line=7"
        async with rig.http.post(url, data=b"1\n", headers=headers) as response:
            assert response.status == 200
        packed = gzip.compress(b"1\n" * 200_000)
        url = f"{rig.url}/api/ha/tables/t/rows?columns=n"
        headers["Content-Encoding"] = "gzip"
        async with rig.http.post(url, data=packed, headers=headers) as response:
            assert response.status == 200
        first, second = (request.statement for request in rig.service.rows)
        assert isinstance(first, SentRows) and isinstance(second, SentRows)
        assert first.form == Form(FormKind.CSV, columns="n", first_line=7)
        assert isinstance(first.stream, SpooledBody) and isinstance(second.stream, SpooledBody)
        assert (first.stream.size, second.stream.size) == (2, 400_000)
        await until(lambda: taken(rig) == 0)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_body_that_is_cut_off_is_refused(
    tmp_path: Path, encoding: str, chunked: bool
) -> None:
    """Like a file that was copied only in part: the HTTP message itself is complete."""
    rows = b"".join(b"%d\n" % number for number in range(100_000))
    whole = gzip.compress(rows) if encoding == "gzip" else zlib.compress(rows)
    headers = {"Content-Type": "text/csv", "Content-Encoding": encoding}

    async def chunks(data: bytes) -> AsyncIterator[bytes]:
        yield data

    async with door(tmp_path, limits=SMALL) as rig:
        url = f"{rig.url}/api/ha/tables/t/rows?columns=n"
        for packed, status in ((whole[:-1], 400), (whole[: len(whole) // 2], 400), (whole, 200)):
            data = chunks(packed) if chunked else packed
            async with rig.http.post(url, data=data, headers=headers) as response:
                assert response.status == status
        (taken_in,) = rig.service.rows
        assert isinstance(taken_in.statement, SentRows)
        assert isinstance(taken_in.statement.stream, SpooledBody)
        assert taken_in.statement.stream.size == len(rows)
        await until(lambda: taken(rig) == 0)


async def test_same_bytes_in_another_form_are_another_request(tmp_path: Path) -> None:
    async with door(tmp_path, limits=SMALL) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)

        async def send(query: str) -> int:
            url = f"{rig.url}/api/ha/tables/t/rows?request_id=r{query}"
            headers = {"Content-Type": "text/csv"}
            async with rig.http.post(url, data=b"n\n1\n", headers=headers) as response:
                return int(response.status)

        first = asyncio.create_task(send(""))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        assert await send("&null=1") == 409
        again = asyncio.create_task(send("&first_line=5"))
        hold.set()
        assert (await first, await again) == (200, 200)
