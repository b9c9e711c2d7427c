"""The rows door: rows that fit a table, refused rows, and the request that reaches the service."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import gc
import io
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.model import OperationClass
from haproc.config.sections import Limits
from haproc.doors.apps import REGISTRY
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Column
from haproc.failure import FailureKind, RequestError
from haproc.route.model import SentRows
from haproc.route.rows.fitting import converted, encoded, fits
from haproc.route.rows.forms import RowsError
from haproc.route.rows.reading import fitted, pieces, read
from tests.unit.canned import ONE, WRITE, Canned
from tests.unit.door_rig import STATEMENTS, WAIT_S, door

ROWS = {"Content-Type": "application/vnd.apache.arrow.stream"}
CSV = {"Content-Type": "text/csv"}


def plain(table: pa.Table, columns: Sequence[Column]) -> bytes:
    return encoded(converted(table, columns))


def ipc(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def fit(kind: pa.DataType, type_text: str) -> bool:
    return not fits(pa.schema({"c": kind}), [Column("c", type_text)])


@pytest.mark.parametrize(
    ("kind", "type_text", "fine"),
    [
        (pa.int8(), "tinyint", True),
        (pa.int32(), "bigint", True),
        (pa.int64(), "int", False),
        (pa.uint8(), "tinyint", False),
        (pa.uint8(), "smallint", True),
        (pa.uint32(), "bigint", True),
        (pa.uint64(), "bigint", False),
        (pa.int32(), "double", True),
        (pa.int64(), "double", False),
        (pa.int32(), "float", False),
        (pa.int32(), "decimal(10,0)", True),
        (pa.int32(), "decimal(10,2)", False),
        (pa.int64(), "decimal(21,2)", True),
        (pa.int32(), "string", False),
        (pa.float32(), "double", True),
        (pa.float64(), "float", False),
        (pa.float64(), "decimal(38,10)", False),
        (pa.decimal128(10, 2), "decimal(12,4)", True),
        (pa.decimal128(10, 2), "decimal(10,1)", False),
        (pa.decimal128(10, 2), "decimal(11,4)", False),
        (pa.string(), "string", True),
        (pa.large_string(), "varchar(10)", True),
        (pa.dictionary(pa.int8(), pa.string()), "string", True),
        (pa.string(), "int", False),
        (pa.binary(), "binary", True),
        (pa.binary(), "string", False),
        (pa.bool_(), "boolean", True),
        (pa.bool_(), "int", False),
        (pa.date32(), "date", True),
        (pa.date64(), "date", True),
        (pa.date32(), "timestamp", False),
        (pa.timestamp("us", "UTC"), "timestamp", True),
        (pa.timestamp("ns", "UTC"), "timestamp", True),
        (pa.timestamp("us"), "timestamp", False),
        (pa.timestamp("us"), "timestamp_ntz", True),
        (pa.timestamp("us", "UTC"), "timestamp_ntz", False),
        (pa.duration("us"), "interval day to second", True),
        (pa.duration("us"), "interval day", False),
        (pa.null(), "int", True),
        (pa.list_(pa.int8()), "array<int>", True),
        (pa.list_(pa.int64()), "array<int>", False),
        (pa.map_(pa.string(), pa.int8()), "map<string,int>", True),
        (pa.map_(pa.string(), pa.int64()), "map<string,int>", False),
        (pa.struct({"B": pa.int8(), "a": pa.string()}), "struct<a:string,b:int>", True),
        (pa.struct({"a": pa.int8()}), "struct<a:string>", False),
        (pa.struct({"a": pa.int8()}), "struct<a:int,b:int>", False),
        (pa.string(), "variant", False),
        (pa.string(), "no such type", False),
    ],
)
def test_fits_accepts_only_types_without_loss(
    kind: pa.DataType, type_text: str, fine: bool
) -> None:
    assert fit(kind, type_text) is fine


def test_fits_compares_columns_by_name() -> None:
    columns = [Column("Id", "int", nullable=False), Column("name", "string")]
    assert fits(pa.schema({"NAME": pa.string(), "id": pa.int32()}), columns) == []
    assert fits(pa.schema({"id": pa.int32()}), columns) == []
    found = fits(
        pa.schema([("name", pa.string()), ("x", pa.int8()), ("Name", pa.string())]), columns
    )
    assert found == [
        "the table has no column x",
        "column Name comes twice",
        "column Id is missing and must not be null",
    ]
    assert fits(pa.schema({"id": pa.null()}), columns) == ["column Id must not be null"]


_VALUES: list[tuple[pa.DataType, list[Any], pa.DataType]] = [
    (pa.uint8(), [255], pa.int16()),
    (pa.uint32(), [2**32 - 1], pa.int64()),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], pa.string()),
    (pa.large_string(), ["x"], pa.string()),
    (pa.string_view(), ["x"], pa.string()),
    (
        pa.timestamp("ns", "UTC"),
        [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
        pa.timestamp("us", "UTC"),
    ),
    (pa.list_(pa.large_binary()), [[b"x", None]], pa.list_(pa.binary())),
    (pa.struct({"a": pa.uint16()}), [{"a": 65535}], pa.struct({"a": pa.int32()})),
    (pa.date64(), [dt.date(2026, 1, 1)], pa.date32()),
    (pa.decimal128(3, -2), [Decimal(12300), None], pa.decimal128(5, 0)),
]


@pytest.mark.parametrize(("kind", "values", "wanted"), _VALUES)
def test_plain_keeps_values_in_types_that_spark_reads(
    kind: pa.DataType, values: list[Any], wanted: pa.DataType
) -> None:
    table = pa.table({"c": pa.array(values, kind)})
    written = pa.ipc.open_stream(plain(table, [Column("c", "x")])).read_all()
    assert written.schema.field("c").type == wanted
    assert written["c"].to_pylist() == values


_DENIED = pa.field("c", pa.int32(), nullable=False)
_NUMBERS = pa.array([1, None], _DENIED.type)
NULLS_DENIED = [
    (pa.RecordBatch.from_arrays([_NUMBERS], schema=pa.schema([_DENIED])), "int"),
    (
        pa.record_batch({"c": pa.StructArray.from_arrays([_NUMBERS], fields=[_DENIED])}),
        "struct<c:int>",
    ),
]
"""Rows with a null in a field declared as not nullable: a column's, a struct's."""


@pytest.mark.parametrize(("batch", "type_text"), NULLS_DENIED)
def test_rows_with_nulls_fit_nullable_columns_although_their_schema_denies_nulls(
    batch: pa.RecordBatch, type_text: str
) -> None:
    columns = [Column("c", type_text)]
    fit_together = pa.ipc.open_stream(fitted(ipc(batch), columns, 1 << 20)).read_all()
    (in_pieces,) = pieces(io.BytesIO(ipc(batch)), columns, 1 << 20)
    assert fit_together.to_pylist() == batch.to_pylist()
    assert pa.ipc.open_stream(in_pieces.data).read_all() == fit_together
    (column,) = fit_together.schema
    inner = list(column.type) if pa.types.is_struct(column.type) else []
    assert all(field.nullable for field in [column, *inner]), "like rows that say nothing"


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("kind", [pa.int32(), pa.struct({"other": pa.int32()})])
def test_column_name_that_is_no_utf8_is_refused(kind: pa.DataType, rows: int) -> None:
    columns = [Column("name", "struct<other:int>" if pa.types.is_struct(kind) else "int")]
    stream = ipc(pa.record_batch({"name": pa.nulls(rows, kind)}))
    for name in (b"name", b"other") if pa.types.is_struct(kind) else (b"name",):
        damaged = stream.replace(name, name[:-1] + b"\xff")
        with pytest.raises(RequestError, match="not an Arrow IPC stream"):
            fitted(damaged, columns, 1 << 20)
        with pytest.raises(RequestError, match="not an Arrow IPC stream"):
            list(pieces(io.BytesIO(damaged), columns, 1 << 20))


def test_rows_of_many_batches_become_one_batch() -> None:
    table = pa.table({"c": pa.array(range(9), pa.int32())})
    stream = fitted(ipc(*table.to_batches(max_chunksize=2)), [Column("c", "int")], 1 << 20)
    assert [batch.num_rows for batch in pa.ipc.open_stream(stream)] == [9]


def test_rows_without_columns_are_refused() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    with pytest.raises(RequestError, match="5 rows have no columns"):
        fitted(ipc(batch), [Column("c", "int")], 1 << 20)
    with pytest.raises(RequestError, match="5 rows have no columns"):
        list(pieces(io.BytesIO(ipc(batch)), [Column("c", "int")], 1 << 20))


def test_plain_refuses_nulls_or_loss() -> None:
    with pytest.raises(RowsError, match="column c must not be null"):
        plain(pa.table({"c": [1, None]}), [Column("C", "bigint", nullable=False)])
    nanos = pa.table({"c": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(RowsError, match="would lose"):
        plain(nanos, [Column("c", "timestamp_ntz")])


def test_read_counts_compressed_rows_unpacked() -> None:
    table = pa.table({"s": ["x" * 1_000_000]})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    assert read(data, 2_000_000).num_rows == 1
    with pytest.raises(RowsError, match="unpacked"):
        read(data, 500_000)


LONG = "x" * 10_000
REPEATED = pa.DictionaryArray.from_arrays(
    pa.array([0] * 999 + [None], pa.int16()), pa.array([LONG])
)
_ONE = pa.array([LONG], pa.string_view()).buffers()
VIEWED = pa.Array.from_buffers(
    pa.string_view(), 1000, [None, pa.py_buffer(_ONE[1].to_pybytes()[:16] * 1000), *_ONE[2:]]
)


@pytest.mark.parametrize(
    "values",
    [
        REPEATED,
        VIEWED,
        pa.StructArray.from_arrays([REPEATED], ["s"]),
        pa.ListArray.from_arrays([0, 1000], REPEATED),
        pa.MapArray.from_arrays([0, 1000], pa.array(range(1000)), REPEATED),
        pa.DictionaryArray.from_arrays(
            pa.array([0] * 1000), pa.array([LONG.encode()], pa.large_binary())
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([0] * 99_999), pa.array([b"x" * 100], pa.binary(100))
        ),
    ],
)
def test_read_counts_repeated_values_as_often_as_they_occur(values: pa.Array) -> None:
    data = stream_of(pa.table({"c": values}))
    assert len(data) < 1_000_000
    assert read(data, 11_000_000).num_rows == len(values)
    with pytest.raises(RowsError, match="unpacked"):
        read(data, 9_000_000)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([LONG, "y", None] * 90, pa.string_view()),
        pa.array([{"a": [LONG], "b": 1}, None] * 90),
        pa.array([[("k", LONG)]] * 90, pa.map_(pa.string(), pa.string())),
        pa.array([LONG, "y"] * 90).dictionary_encode(),
    ],
)
def test_read_counts_rows_with_at_most_their_plain_size(values: pa.Array) -> None:
    table = pa.table({"c": values})
    written = plain(table, [Column("c", "x")])
    assert read(stream_of(table), len(written)).num_rows == len(values)


@given(st.binary(max_size=300), st.integers(0, 500))
def test_read_of_a_damaged_stream_refuses_or_reads_it(noise: bytes, at: int) -> None:
    data = stream_of(pa.table({"n": [1, 2, 3], "s": ["a", None, "c"]}))
    for damaged in (noise, data[:at], data[:at] + noise + data[at + len(noise) :]):
        try:
            read(damaged, 1 << 20)
        except RowsError as error:
            assert error.problems


TO_T = "/api/ha/tables/t/rows"


async def test_rows_are_appended_as_one_operation(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        data = stream_of(pa.table({"n": pa.array([1, 2], pa.int32())}))
        query = "?request_id=r1&timeout_s=2.5&age_s=9&catalog=c&schema=s"
        outcomes = {"a": "applied", "b": "queued"}
        rig.service.table["main.db.t"] = dataclasses.replace(WRITE, outcomes=outcomes)
        path = f"/api/ha/tables/main.db.t/rows{query}"
        got, answer = await rig.ask("post", path, data=data, headers=ROWS)
        assert got == 200
        assert answer == {
            "statement_id": "r1",
            "status": {"state": "SUCCEEDED"},
            "ha": {
                "cluster": "a",
                "class": "asynchronous",
                "log_offset": 7,
                "outcomes": {"a": "applied", "b": "queued"},
                "affected_rows": 2,
                "after_offset": 8,
            },
        }
        request = rig.service.rows[0]
        assert (request.catalog, request.schema) == ("c", "s")
        assert request.statement == SentRows("main.db.t", data)
        assert (request.timeout_s, request.age_s) == (2.5, 9.0)
        assert request.arrived_s is not None


ONE_ROW = pa.table({"n": pa.array([1], pa.int32())})


@pytest.mark.parametrize(
    ("query", "headers", "data", "status", "reason"),
    [
        ("", {"Content-Type": "text/html"}, b"1,2", 415, "text/html"),
        ("", {"Content-Type": "text/csv; charset=latin1"}, b"1,2", 415, "latin1"),
        ("?delimiter=ab", CSV, b"1,2", 400, "delimiter must be one ASCII character"),
        ("?time_zone=Europe/Nowhere", CSV, b"1,2", 400, "no time zone 'Europe/Nowhere'"),
        ("?first_line=-1", CSV, b"1,2", 400, "first_line must be a number of a line"),
        ("?null=x", ROWS, b"", 400, "null says nothing of application/vnd.apache.arrow.stream"),
        ("", ROWS, b"", 400, "not an Arrow IPC stream"),
        ("", ROWS, b"nonsense that is no stream", 400, "not an Arrow IPC stream"),
        ("", ROWS, stream_of(pa.table({"x": [1]})), 400, "no column x"),
        ("", ROWS, stream_of(ONE_ROW) * 2, 400, "bytes stand behind the end of the stream"),
        ("?tiemout_s=1", ROWS, b"", 400, "unknown field 'tiemout_s'"),
        ("?timeout_s=soon", ROWS, b"", 400, "timeout_s must be a number"),
        ("?timeout_s=nan", ROWS, b"", 400, "timeout_s must be above 0"),
        ("?age_s=-1", ROWS, b"", 400, "age_s must be at least 0"),
        ("?age_s=old", ROWS, b"", 400, "age_s must be a number"),
        ("?request_id=a%20b", ROWS, b"", 400, "request_id must be"),
        ("?request_id=a&request_id=b", ROWS, b"", 400, "comes twice"),
        ("?catalog=", ROWS, b"", 400, "catalog is empty"),
        ("", ROWS, b"x" * 100_001, 413, "100000 bytes"),
    ],
)
async def test_wrong_rows_request_is_refused(
    tmp_path: Path, query: str, headers: dict[str, str], data: bytes, status: int, reason: str
) -> None:
    limits = Limits(operation_bytes_max=100_000, staged_bytes_max=100_000)
    async with door(tmp_path, limits=limits) as rig:
        path = f"/api/ha/tables/main.db.t/rows{query}"
        got, answer = await rig.ask("post", path, data=data, headers=headers)
        assert (got, answer["kind"]) == (status, "refused")
        assert reason in answer["message"]
        assert not rig.service.rows


async def test_append_of_rows_goes_on_after_its_client_left(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = Canned(ONE.chunks, OperationClass.ASYNCHRONOUS, hold=hold)
        data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
        post = partial(rig.status_of, "post", f"{TO_T}?request_id=r1", headers=ROWS)
        task = asyncio.create_task(post(data=data))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = asyncio.create_task(post(data=data))
        other = stream_of(pa.table({"n": pa.array([2], pa.int32())}))
        assert await post(data=other) == 409
        hold.set()
        assert await again == 200
        # The repetition attached to it, or came after it: then the service knows the id.
        assert set(rig.service.finished) == {"r1"}
        assert await rig.app[REGISTRY].request_admission.wait_idle(WAIT_S)


async def test_failing_append_of_a_client_that_left_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
    hold = asyncio.Event()
    async with door(tmp_path) as rig:
        error = RequestError(FailureKind.APPLICATION, "no", error_class="X")
        rig.service.table["t"] = Canned(hold=hold, error=error)
        post = partial(rig.status_of, "post", TO_T, headers=ROWS)
        task = asyncio.create_task(post(data=data))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        gate = rig.app[REGISTRY].request_admission
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(WAIT_S):
            while rig.listener._permits:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        hold.set()
        assert await gate.wait_idle(WAIT_S)
    gc.collect()
    assert caplog.text == ""


async def test_running_append_is_found_by_its_id_and_counts_once(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)
        data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
        post = partial(rig.status_of, "post", f"{TO_T}?request_id=r1", headers=ROWS)
        asking = [asyncio.create_task(post(data=data)) for _ in range(3)]
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        assert (await rig.get(f"{STATEMENTS}/r1"))["status"] == {"state": "RUNNING"}
        assert await rig.status_of("post", f"{STATEMENTS}/r1/cancel") == 200  # a write goes on
        hold.set()
        assert await asyncio.gather(*asking) == [200, 200, 200]
        assert rig.service.finished == ["r1"]
        # What is not kept is asked of the log.
        await rig.get(f"{STATEMENTS}/r1", 404)
        rig.service.written["anonymous", "r1"] = rig.service.rows[0]
        assert (await rig.get(f"{STATEMENTS}/r1"))["ha"]["log_offset"] == 7


async def test_rows_over_the_statement_limit_are_refused_at_once(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(statements_max=1, statement_queue_s=0)) as rig:
        hold = asyncio.Event()
        rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)
        data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
        post = partial(rig.status_of, "post", TO_T, headers=ROWS)
        asking = asyncio.create_task(post(data=data))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        assert await post(data=data) == 429
        hold.set()
        assert await asking == 200
        text = rig.metrics.text().decode()
        assert 'class="asynchronous"' in text
