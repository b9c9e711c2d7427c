"""Tests that bound parameters come back equal from a real Spark."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.pin.parameters import Parameter, Parameters, bind, expand_rows
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import apply, rows, table

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1)
VALUES_PER_STATEMENT = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """A parameter's text and type, and the type and value expected in the result's Arrow column."""

    text: Any
    kind: str
    arrow: pa.DataType
    expected: Any


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def double_bits(value: float) -> bytes:
    return b"NaN" if math.isnan(value) else struct.pack("<d", value)


@st.composite
def decimals(draw: st.DrawFn) -> Sample:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    unscaled = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    text = f"{Decimal(unscaled).scaleb(-scale, None) if precision < 28 else unscaled}"
    if precision >= 28:
        digits = str(abs(unscaled)).zfill(scale + 1)
        sign = "-" if unscaled < 0 else ""
        text = f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}"
    return Sample(text, f"DECIMAL({precision},{scale})", pa.decimal128(precision, scale), unscaled)


def integer(kind: str, bits: int, arrow: pa.DataType) -> st.SearchStrategy[Sample]:
    limit = 1 << (bits - 1)
    return st.integers(-limit, limit - 1).map(lambda v: Sample(str(v), kind, arrow, v))


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
hostile = st.sampled_from(
    [
        "it's",
        '"',
        "\\",
        "\\'",
        "\\\\'; DROP TABLE t; --",
        "' OR '1'='1",
        "a\0b",
        "\r\n\t\b\x1a",
        "${env:HOME}",
        "${spark.app.name}",
        "$",
        "\\u0041",
        "\\101",
        "%_\\%\\_",
        "?",
        ":x",
        "/* -- */",
        "'''",
        "😀\U0010ffff",
        "e\u0301\u2028\u2029\u0085",
        "",
        " ",
        "now",
    ]
)
naive = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
samples = st.one_of(
    st.one_of(texts, hostile).map(lambda v: Sample(v, "STRING", pa.string(), v)),
    integer("TINYINT", 8, pa.int8()),
    integer("SMALLINT", 16, pa.int16()),
    integer("INT", 32, pa.int32()),
    integer("BIGINT", 64, pa.int64()),
    decimals(),
    st.floats().map(lambda v: Sample(repr(v), "DOUBLE", pa.float64(), double_bits(v))),
    st.floats(width=32).map(lambda v: Sample(repr(v), "FLOAT", pa.float32(), double_bits(v))),
    st.dates(date(1, 1, 1)).map(
        lambda v: Sample(v.isoformat(), "DATE", pa.date32(), v.toordinal() - EPOCH.toordinal())
    ),
    naive.map(
        lambda v: Sample(f"{v.isoformat()}Z", "TIMESTAMP", pa.timestamp("us", "UTC"), micros(v))
    ),
    naive.map(
        lambda v: Sample(v.isoformat(" "), "TIMESTAMP_NTZ", pa.timestamp("us"), micros(v))
    ),
    st.binary().map(
        lambda v: Sample(base64.b64encode(v).decode(), "BINARY", pa.binary(), v)
    ),
    st.booleans().map(lambda v: Sample(str(v).lower(), "BOOLEAN", pa.bool_(), v)),
    st.sampled_from(["INT", "STRING", "DECIMAL(5,2)"]).map(
        lambda kind: Sample(
            None,
            kind,
            {"INT": pa.int32(), "STRING": pa.string()}.get(kind, pa.decimal128(5, 2)),
            None,
        )
    ),
    st.lists(st.one_of(st.none(), st.integers(-9, 9))).map(
        lambda v: Sample(json.dumps(v), "ARRAY<INT>", pa.list_(pa.int32()), v)
    ),
    st.lists(texts).map(lambda v: Sample(v, "ARRAY<STRING>", pa.list_(pa.string()), v)),
    st.dictionaries(texts, st.one_of(st.none(), st.integers(-9, 9))).map(
        lambda v: Sample(
            v, "MAP<STRING,INT>", pa.map_(pa.string(), pa.int32()), list(v.items())
        )
    ),
    st.integers(-(2**63), 2**63 - 1).map(
        lambda v: Sample(
            interval_text(v), "INTERVAL DAY TO SECOND", pa.duration("us"), v
        )
    ),
)  # fmt: skip


def interval_text(value: int) -> str:
    seconds, fraction = divmod(abs(value), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{hours // 24} {hours % 24:02d}:{minute:02d}:{second:02d}.{fraction:06d}"
    return f"-{text}" if value < 0 else text


def comes_back(column: pa.ChunkedArray) -> Any:
    """Return a column's single value in the form that samples expect."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    value = column[0].as_py()
    if isinstance(value, float):
        return double_bits(value)
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        return int("".join(map(str, digits))) * (-1 if sign else 1)
    return value


def same_type(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(wanted):
        return (actual.tz is None) == (wanted.tz is None)
    if pa.types.is_list(wanted):
        return same_type(actual.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        return same_type(actual.item_type, wanted.item_type)
    return bool(actual == wanted)


def parameters(chosen: list[Sample]) -> Parameters:
    return tuple(Parameter(None, sample.text, sample.kind) for sample in chosen)


async def check(server: LocalSpark, chosen: list[Sample], *, ansi: bool) -> None:
    engine = SparkConnectEngine(address_of(server), ring="ring", cluster="a")
    try:
        session = engine.session(f"parameters-{ansi}")
        await session.configure(Settings(ansi=ansi, time_zone="America/New_York"))
        markers = ", ".join(f"? AS v{at}" for at in range(len(chosen)))
        result = await table(session, bind(f"SELECT {markers}", parameters(chosen)))
        for at, sample in enumerate(chosen):
            column = result.column(f"v{at}")
            assert comes_back(column) == sample.expected, sample
            assert same_type(column.type, sample.arrow), (sample, column.type)
    finally:
        await engine.aclose()


@pytest.mark.parametrize("ansi", [True, False])
def test_bound_values_of_any_type_are_read_back_equal(spark: LocalSpark, ansi: bool) -> None:
    @settings(
        max_examples=6,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    )
    @given(st.lists(samples, min_size=VALUES_PER_STATEMENT, max_size=VALUES_PER_STATEMENT))
    def round_trip(chosen: list[Sample]) -> None:
        asyncio.run(check(spark, chosen, ansi=ansi))

    round_trip()


EDGES = [
    *(("DOUBLE", text) for text in ["NaN", "Infinity", "-Infinity", "-0.0", "5e-324"]),
    ("DOUBLE", "1.7976931348623157e308"),
]


async def test_bound_values_at_the_edges_of_their_types_are_read_back_equal(
    engine: SparkConnectEngine,
) -> None:
    far = [Sample(text, kind, pa.float64(), double_bits(float(text))) for kind, text in EDGES]
    far += [
        Sample("3.4028234663852886e38", "FLOAT", pa.float32(), double_bits(3.4028234663852886e38)),
        Sample("1.401298464324817e-45", "FLOAT", pa.float32(), double_bits(2**-149)),
        Sample("[]", "ARRAY<DATE>", pa.list_(pa.date32()), []),
        Sample({}, "MAP<STRING,DATE>", pa.map_(pa.string(), pa.date32()), []),
        Sample("[null]", "ARRAY<INT>", pa.list_(pa.int32()), [None]),
        Sample("[[], [1]]", "ARRAY<ARRAY<INT>>", pa.list_(pa.list_(pa.int32())), [[], [1]]),
    ]  # fmt: skip
    markers = ", ".join(f"? AS v{at}" for at in range(len(far)))
    result = await table(engine.session("edges"), bind(f"SELECT {markers}", parameters(far)))
    for at, sample in enumerate(far):
        assert comes_back(result.column(at)) == sample.expected, sample
        assert same_type(result.column(at).type, sample.arrow), sample


async def test_bound_values_of_types_without_an_arrow_form_are_read_back_as_text(
    engine: SparkConnectEngine,
) -> None:
    sql = "SELECT string(?), string(?), string(?), typeof(?), typeof(?), typeof(?)"
    kinds = [
        ("-178956970-8", "INTERVAL YEAR TO MONTH"),
        ("3", "INTERVAL MONTH"),
        ("5 hours", "INTERVAL"),
    ]
    values = tuple(Parameter(None, text, kind) for text, kind in kinds)
    assert await rows(engine.session("text"), bind(sql, values * 2)) == [
        (
            "INTERVAL '-178956970-8' YEAR TO MONTH",
            "INTERVAL '3' MONTH",
            "INTERVAL '05' HOUR",
            "interval year to month",
            "interval month",
            "interval hour",
        )
    ]  # fmt: skip


async def test_bound_struct_and_void_are_read_back_equal(engine: SparkConnectEngine) -> None:
    value = {"a": 1, "b c": ["x", None]}
    bound = bind(
        "SELECT :s, :v",
        (Parameter("s", value, "STRUCT<a: INT, `b c`: ARRAY<STRING>>"), Parameter("v", None)),
    )
    assert await rows(engine.session("struct"), bound) == [(value, None)]


async def test_bound_parameters_work_in_all_clauses_of_statements(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("clauses")
    name = f"{schema}.t"
    await apply(engine, f"CREATE TABLE {name} (a INT, b STRING) USING delta")
    row = [
        (Parameter(None, str(i), "INT"), Parameter(None, f"it's {i}\n${{x}}")) for i in range(100)
    ]
    await apply(engine, expand_rows(f"INSERT INTO {name} (a, b) VALUES (?, ?)", row))
    sql = "SELECT a, b FROM IDENTIFIER(:t) WHERE a BETWEEN :low AND :high - 1 LIMIT :n"
    bound = bind(
        sql,
        (
            Parameter("t", name),
            Parameter("low", "-5", "INT"),
            Parameter("high", "2", "INT"),
            Parameter("n", "10", "INT"),
        ),
    )
    assert sorted(await rows(session, bound)) == [(0, "it's 0\n${x}"), (1, "it's 1\n${x}")]
    gone = (Parameter(None, "' OR '1'='1"),)
    await apply(engine, bind(f"DELETE FROM {name} WHERE b = ?", gone))
    assert await rows(session, f"SELECT count(*) FROM {name}") == [(100,)]
