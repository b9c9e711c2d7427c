"""Tests of haclient's values: Python values as parameters, result rows, the statement splitter."""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import haclient
from haclient import columns, parameters
from haclient.arrow import BrokenStream, Frames, Rows, read_whole
from haclient.columns import date_text
from haclient.output import text
from haclient.request_ids import AGE_MAX_S, Age, new_request_id, request_id
from haclient.settings import parse_servers
from haclient.statements import Split, is_row_insert, pieces, split
from haproc.pin.parameters import bind, parse_parameters
from haproc.statements.plain_arrow import timestamp_text as server_text
from tests.unit.haclient_server import arrow

ZURICH = dt.timezone(dt.timedelta(hours=2))
INTERVAL_MAX = dt.timedelta(days=106_751_990)  # Spark's: 64 bits of microseconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"value": None}),
        ("it's", {"value": "it's"}),
        (True, {"value": "true", "type": "BOOLEAN"}),
        (-7, {"value": "-7", "type": "INT"}),
        (1 << 31, {"value": "2147483648", "type": "BIGINT"}),
        (1 << 63, {"value": "9223372036854775808", "type": "DECIMAL(19,0)"}),
        (1.5, {"value": "1.5", "type": "DOUBLE"}),
        (float("-inf"), {"value": "-Infinity", "type": "DOUBLE"}),
        (Decimal("1.50"), {"value": "1.50", "type": "DECIMAL(3,2)"}),
        (Decimal("0.001"), {"value": "0.001", "type": "DECIMAL(3,3)"}),
        (Decimal("1E+3"), {"value": "1000", "type": "DECIMAL(4,0)"}),
        (dt.date(2026, 1, 2), {"value": "2026-01-02", "type": "DATE"}),
        (dt.time(1, 2, 3), {"value": "01:02:03", "type": "TIME"}),
        (dt.datetime(2026, 1, 2, 3), {"value": "2026-01-02 03:00:00", "type": "TIMESTAMP_NTZ"}),
        (
            dt.datetime(2026, 1, 2, 3, tzinfo=ZURICH),
            {"value": "2026-01-02 01:00:00+00:00", "type": "TIMESTAMP"},
        ),
        (
            -dt.timedelta(days=1, hours=2, microseconds=5),
            {"value": "-1 02:00:00.000005", "type": "INTERVAL DAY TO SECOND"},
        ),
        (b"\x00\xff", {"value": "AP8=", "type": "BINARY"}),
        (uuid.UUID(int=1), {"value": "00000000-0000-0000-0000-000000000001"}),
        ([1, None, 1 << 40], {"value": '["1", null, "1099511627776"]', "type": "ARRAY<BIGINT>"}),
        ([], {"value": "[]", "type": "ARRAY<VOID>"}),
        ([1, Decimal("0.5")], {"value": '["1", "0.5"]', "type": "ARRAY<DECIMAL(11,1)>"}),
        ({"a": [1.5]}, {"value": '[["a", ["1.5"]]]', "type": "MAP<STRING, ARRAY<DOUBLE>>"}),
        (np.int64(5), {"value": "5", "type": "INT"}),
        (np.float32(0.5), {"value": "0.5", "type": "DOUBLE"}),
    ],
)
def test_parameter_of_a_python_value_is_text_with_its_type(value: Any, expected: Any) -> None:
    assert parameters.encode([value]) == [expected]
    bind("SELECT ?", parse_parameters(parameters.encode([value])))  # the server takes it


def test_parameters_of_a_mapping_are_named() -> None:
    encoded = parameters.encode({"a": 1})
    assert encoded == [{"name": "a", "value": "1", "type": "INT"}]
    assert bind("SELECT :a", parse_parameters(encoded)) == "SELECT 1"


@pytest.mark.parametrize(
    "value", [object(), [1, "a"], {None: 1}, [dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)]]
)
def test_parameter_without_a_spark_type_raises_programming_error(value: Any) -> None:
    with pytest.raises(haclient.ProgrammingError, match="parameter 1"):
        parameters.encode([value])


@pytest.mark.parametrize("value", [10**38, Decimal("NaN"), Decimal(1).scaleb(-39), "\ud800"])
def test_parameter_out_of_range_raises_data_error(value: Any) -> None:
    with pytest.raises(haclient.DataError):
        parameters.encode([value])


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.just(ZURICH)),
    st.timedeltas(-INTERVAL_MAX, INTERVAL_MAX),
    st.times(),
    st.uuids(),
    st.decimals(
        allow_nan=False, allow_infinity=False, places=5, min_value=-(10**20), max_value=10**20
    ),
)


@given(st.one_of(scalars, st.lists(st.integers()).map(lambda v: [i % 10**9 for i in v])))
def test_parameter_of_any_value_is_accepted_by_the_server(value: Any) -> None:
    bind("SELECT ?", parse_parameters(parameters.encode([value])))


def test_rows_of_a_batch_are_plain_python() -> None:
    moment = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "d": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "t": pa.array([moment], pa.timestamp("us", "UTC")),
            "n": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            "s": pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
            "a": pa.array([[1, None]], pa.list_(pa.int64())),
            "i": pa.array([dt.timedelta(days=1)], pa.duration("us")),
            "b": pa.array([b"\x00"], pa.binary()),
        }
    )
    naive = moment.replace(tzinfo=None)
    day = dt.timedelta(days=1)
    wanted = (Decimal("1.50"), moment, naive, {"a": 1}, {"x": 1}, [1, None], day, b"\x00")
    assert columns.rows(batch) == [wanted]
    described = columns.describe(batch.schema)
    assert described is not None
    plain = ["DECIMAL", "TIMESTAMP", "TIMESTAMP_NTZ"]
    nested = ["MAP<STRING, INT>", "STRUCT<x: INT>", "ARRAY<BIGINT>"]
    assert [c.type_code for c in described] == [*plain, *nested, "INTERVAL", "BINARY"]
    deep = pa.schema([("d", pa.list_(pa.struct([("p", pa.decimal128(5, 2))])))])
    assert columns.describe(deep)[0].type_code == "ARRAY<STRUCT<p: DECIMAL(5,2)>>"  # type: ignore[index]
    assert (described[0].precision, described[0].scale) == (10, 2)
    assert described[1].type_code == haclient.DATETIME != described[0].type_code


YEAR_MONTHS = """
/////5ACAAAQAAAAAAAKAA4ABgANAAgACgAAAAAABAAQAAAAAAEKAAwAAAAIAAQACgAAAAgAAAAIAAAAAAAAAAYAAAAkAgAA
nAEAADwBAAB0AAAAOAAAAAQAAAAG/v//FAAAABQAAAAUAAAAAAAAEhQAAAAAAAAAAAAAAM7///8AAAIAAQAAAGYAAAA2/v//
FAAAABQAAAAcAAAAAAAACxwAAAAAAAAAAAAAAAAABgAIAAYABgAAAAAAAgABAAAAZQAAAG7+//8UAAAAFAAAAKwAAAAAAAAR
qAAAAAAAAAABAAAABAAAAJL+//8UAAAAFAAAAHgAAAAAAAANdAAAAAAAAAACAAAAOAAAAAQAAAC6/v//FAAAABQAAAAUAAAA
AAAACxAAAAAAAAAAAAAAAKj+//8FAAAAdmFsdWUAAADq/v//FAAAABQAAAAUAAAAAAAABRAAAAAAAAAAAAAAANj+//8DAAAA
a2V5AOT+//8HAAAAZW50cmllcwD0/v//AQAAAGQAAAAy////FAAAABQAAABEAAAAAAAADUAAAAAAAAAAAQAAAAQAAABW////
FAAAABQAAAAUAAAAAAAACxAAAAAAAAAAAAAAAET///8BAAAAeAAAAFD///8BAAAAYwAAAI7///8UAAAAFAAAAFwAAAAAAAAM
WAAAAAAAAAABAAAAGAAAAAAAEgAYABQAEwASAAwAAAAIAAQAEgAAABQAAAAUAAAAFAAAAAAACwEQAAAAAAAAAAAAAAC0////
BwAAAGVsZW1lbnQAxP///wEAAABiABIAGAAUAAAAEwAMAAAACAAEABIAAAAUAAAAFAAAABgAAAAAAAALFAAAAAAAAAAAAAAA
BAAEAAQAAAABAAAAYQAAAP////9YAgAAFAAAAAAAAAAMABYADgAVABAABAAMAAAAsAAAAAAAAAAAAAQAEAAAAAADCgAYAAwA
CAAEAAoAAAAUAAAAaAEAAAEAAAAAAAAAAAAAABUAAAAAAAAAAAAAAAEAAAAAAAAACAAAAAAAAAAEAAAAAAAAABAAAAAAAAAA
AQAAAAAAAAAYAAAAAAAAAAgAAAAAAAAAIAAAAAAAAAABAAAAAAAAACgAAAAAAAAACAAAAAAAAAAwAAAAAAAAAAEAAAAAAAAA
OAAAAAAAAAABAAAAAAAAAEAAAAAAAAAABAAAAAAAAABIAAAAAAAAAAEAAAAAAAAAUAAAAAAAAAAIAAAAAAAAAFgAAAAAAAAA
AQAAAAAAAABgAAAAAAAAAAEAAAAAAAAAaAAAAAAAAAAIAAAAAAAAAHAAAAAAAAAAAQAAAAAAAAB4AAAAAAAAAAEAAAAAAAAA
gAAAAAAAAAAEAAAAAAAAAIgAAAAAAAAAAQAAAAAAAACQAAAAAAAAABAAAAAAAAAAoAAAAAAAAAABAAAAAAAAAKgAAAAAAAAA
CAAAAAAAAAAAAAAACwAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAgAAAAAAAAABAAAAAAAAAAEAAAAAAAAA
AAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAA
AQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAOAAAAAAAAAAEAAAAAAAAA
AAAAAAIAAAABAAAAAAAAAA4AAAAAAAAAAQAAAAAAAAABAAAAAAAAAPv///8AAAAAAQAAAAAAAAAAAAAAAQAAAAEAAAAAAAAA
AQAAAAAAAAAAAAAAAQAAAGsAAAAAAAAAAQAAAAAAAAADAAAAAAAAAAEAAAAAAAAADgAAABkAAAAAtoJmtBAAAAEAAAAAAAAA
AGDXHRQAAAD/////AAAAAA==
"""
"""Spark's response to a query of intervals: pyarrow cannot make such arrays itself."""


def test_year_month_intervals_of_spark_are_read_as_months_at_any_nesting() -> None:
    # SELECT INTERVAL '1-2' YEAR TO MONTH a, array(a, NULL) b, named_struct('x', -5 months) c, …
    stream = base64.b64decode(YEAR_MONTHS)
    schema, batches = read_whole(stream)
    frames = Frames()
    assert frames.feed(stream) == batches and frames.schema == schema
    [row] = columns.rows(batches[0])

    def months(number: int) -> Any:
        return pa.MonthDayNano((number, 0, 0))

    assert row[:4] == (months(14), [months(14), None], {"x": months(-5)}, {"k": months(3)})
    assert row[4] == pa.MonthDayNano((14, 25, 18_367_000_000_000))
    assert pa.Table.from_batches(batches).num_rows == 1
    described = columns.describe(schema)
    assert described is not None and described[0].type_code == "INTERVAL"
    assert text(months(14)) == "1 years 2 months"
    assert text(months(-5)) == "-5 months"
    assert text(pa.MonthDayNano((0, 0, -1_500_000_000))) == "-1.5 seconds"


TABLE = pa.table({"n": pa.array(range(1000), pa.int32()), "s": ["x" * 10] * 1000})


@given(st.lists(st.integers(1, 5000), max_size=30))
def test_frames_cut_at_any_position_give_the_same_batches(cuts: list[int]) -> None:
    data, frames, batches = arrow(TABLE, 100), Frames(), []
    for size in [*cuts, len(data)]:
        batches += frames.feed(data[:size])
        data = data[size:]
    frames.finish()
    assert len(batches) == 10
    assert pa.Table.from_batches(batches, schema=frames.schema).equals(TABLE)


def test_frames_of_dictionaries_are_decoded() -> None:
    table = pa.table({"s": pa.array(["a", "b", "a"]).dictionary_encode()})
    frames = Frames()
    batches = frames.feed(arrow(table))
    assert [batch.to_pylist() for batch in batches] == [table.to_pylist()]


def test_frames_that_end_within_a_message_raise_broken_stream() -> None:
    frames = Frames()
    frames.feed(arrow(TABLE, 100)[:-50])
    with pytest.raises(BrokenStream):
        frames.finish()


@pytest.mark.parametrize("data", [b"{}" * 10, b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x00" * 400])
def test_frames_of_data_that_is_not_arrow_raise_broken_stream(data: bytes) -> None:
    with pytest.raises(BrokenStream):
        Frames().feed(data)
    with pytest.raises(BrokenStream):
        read_whole(data)


def test_request_ids_sort_by_time_and_are_uuids_of_version_7() -> None:
    first, second = request_id(1, b"\xff" * 10), request_id(2, b"\x00" * 10)
    assert first < second
    made = uuid.UUID(new_request_id())
    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def aged(monkeypatch: pytest.MonkeyPatch, monotonic_s: float, wall_s: float) -> float:
    """Return the age of a request at its second attempt, after the clocks advanced by so much."""
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    age = Age(2.0)
    assert age.now() == 2.0
    monkeypatch.setattr(time, "monotonic", lambda: 50.0 + monotonic_s)
    monkeypatch.setattr(time, "time", lambda: 1e9 + wall_s)
    return age.now()


def test_age_includes_the_time_in_which_the_computer_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a server would search too little of the log for the first attempt's copy."""
    assert aged(monkeypatch, monotonic_s=1.0, wall_s=3600.0) == 3602.0


@pytest.mark.parametrize(
    ("monotonic_s", "wall_s", "expected"),
    [(3.0, -500.0, 5.0), (0.0, 0.0, 2.001), (1.0, 2e9, AGE_MAX_S)],
)
def test_age_of_a_second_attempt_is_right_when_the_wall_clock_jumps(
    monkeypatch: pytest.MonkeyPatch, monotonic_s: float, wall_s: float, expected: float
) -> None:
    assert aged(monkeypatch, monotonic_s, wall_s) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1; select 2;", Split(("select 1", "select 2"), "")),
        ("select ';' ; x", Split(("select ';'",), "x")),
        (r"select 'it\';s'; x", Split((r"select 'it\';s'",), "x")),
        ('select `a;``b`, "c;"; x', Split(('select `a;``b`, "c;"',), "x")),
        (r"select r'\'; x", Split((r"select r'\'",), "x")),
        ("-- a; b\nselect 1;", Split(("-- a; b\nselect 1",), "")),
        ("/* a; /* b; */ c; */ select 1; x", Split(("/* a; /* b; */ c; */ select 1",), "x")),
        (";; -- nothing\n;", Split((), "")),
        ("select 'open; ", Split((), "select 'open;")),
        ("select /* open; ", Split((), "select /* open;")),
    ],
)
def test_split_of_a_text_returns_its_statements_and_the_rest(sql: str, expected: Split) -> None:
    assert split(sql) == expected


def parts(sql: str) -> list[str]:
    """Return the words, strings and signs of a text, without comments."""
    found = ((kind, sql[begin:end]) for kind, begin, end in pieces(sql))
    return [text for kind, text in found if kind not in ("line", "block", "space")]


PIECES = ["a", "'", '"', "`", "--", "/*", "*/", "\\", " ", "\n", "r", "(", "-", "/"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join)).map(";".join))
def test_split_of_any_text_loses_nothing_of_any_statement(sql: str) -> None:
    found = split(sql)
    expected: list[list[str]] = [[]]
    for part in parts(sql.strip()):
        if part == ";":
            expected.append([])
        else:
            expected[-1].append(part)
    *ended, rest = expected
    assert [parts(statement) for statement in found.statements] == [each for each in ended if each]
    assert parts(found.rest) == rest
    assert all(statement in sql for statement in found.statements) and found.rest in sql
    # A newline, because a statement may end with a comment.
    assert split("\n;".join((*found.statements, found.rest))) == found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t VALUES (?, 'a)')", True),
        ("-- x\ninsert into t (a, b) values (:a, f(:b));", True),
        ("INSERT INTO `values` VALUES (?)", True),
        ("INSERT INTO t VALUES (1), (?)", False),
        ("INSERT INTO t SELECT ?", False),
        ("UPDATE t SET a = (?)", False),
        ("INSERT INTO t VALUES (?) RETURNING x", False),
        ("VALUES (?)", False),
    ],
)
def test_is_row_insert_is_true_for_an_insert_with_one_row_of_parameters(
    sql: str, expected: bool
) -> None:
    assert is_row_insert(sql) is expected


def sent(rows: Rows) -> pa.Table:
    """Return the rows of a request body of either form."""
    body = rows.body()
    data = body if isinstance(body, bytes) else b"".join(body)
    return pa.ipc.open_stream(data).read_all()


def test_rows_of_every_form_are_the_same_table() -> None:
    batches = TABLE.to_batches(max_chunksize=300)
    forms = [TABLE, batches, iter(batches), TABLE.to_reader(), TABLE.to_pandas()]
    for form in [*forms, TABLE.to_reader, lambda: iter(batches)]:
        rows = Rows(form)
        assert sent(rows).equals(TABLE) and sent(rows).equals(TABLE), "also a second time"
    assert sent(Rows(batches[0])).num_rows == 300


@pytest.mark.parametrize("data", [5, [], ["x"], lambda: 5])
def test_rows_of_an_unsupported_type_are_refused(data: Any) -> None:
    with pytest.raises(haclient.InterfaceError):
        Rows(data).body()


MANY = pa.table({"n": range(3_000_000)})


@pytest.mark.parametrize("form", [lambda: MANY, lambda: MANY.to_batches(), lambda: MANY.to_reader])
def test_many_rows_are_sent_in_pieces_and_can_be_sent_again(form: Any) -> None:
    rows = Rows(form())
    first, again = rows.body(), rows.body()
    assert not isinstance(first, bytes) and not isinstance(again, bytes)
    data = list(first)
    assert max(map(len, data)) < 5 << 20
    assert b"".join(again) == b"".join(data), "a retry is the same request"
    assert pa.ipc.open_stream(b"".join(data)).read_all().equals(MANY)


@pytest.mark.parametrize("form", [MANY.to_reader, lambda: iter(MANY.to_batches(100_000))])
def test_many_rows_from_a_one_time_iterator_cannot_be_sent_again(form: Any) -> None:
    rows = Rows(form())
    assert sent(rows).equals(MANY)
    with pytest.raises(haclient.InterfaceError, match="a function that returns a new iterator"):
        rows.body()


def test_servers_given_as_text_or_as_list_are_the_same() -> None:
    text = parse_servers("https://a:1,b:2, [::1]")
    assert [s.url for s in text] == ["https://a:1", "https://b:2", "https://[::1]:443"]
    assert parse_servers(["https://a:1", "https://b:2", "https://[::1]:443"]) == text


@pytest.mark.parametrize("servers", ["", "ftp://a", "http://a:x", "http://a,http://a:80", "a?b"])
def test_servers_that_are_invalid_are_refused(servers: str) -> None:
    with pytest.raises(haclient.InterfaceError):
        parse_servers(servers)


def test_error_text_contains_class_sqlstate_and_hint() -> None:
    from haclient.exceptions import Failure, FailureKind, error_from

    failure = Failure(
        FailureKind.APPLICATION, "no t", error_class="GONE", sqlstate="42P01", hint="look"
    )
    error = error_from(failure, "id")
    assert isinstance(error, haclient.ProgrammingError)
    assert str(error) == "[GONE] no t (SQLSTATE 42P01)\nHint: look"
    assert json.dumps(error.kind) == '"application"'


FAR_DAY = 3_672_318  # of the year 12024


def test_dates_outside_pythons_range_are_text_as_over_http() -> None:
    micros = FAR_DAY * 86_400_000_000 + 1_000
    days = pa.array([FAR_DAY, 0, None], pa.int32()).cast(pa.date32())
    moments = pa.array([micros, 0, None], pa.int64())
    nested = pa.StructArray.from_arrays([days], ["d"])
    batch = pa.RecordBatch.from_arrays(
        [
            days,
            moments.cast(pa.timestamp("us", "UTC")),
            moments.cast(pa.timestamp("us")),
            nested,
        ],
        ["d", "t", "n", "s"],
    )
    first, second, third = columns.rows(batch)
    far = date_text(FAR_DAY)
    assert far.startswith("+12024-")
    assert first == (far, f"{far}T00:00:00.001Z", f"{far}T00:00:00.001", {"d": far})
    epoch = dt.datetime(1970, 1, 1)
    day = epoch.date()
    assert second == (day, epoch.replace(tzinfo=dt.UTC), epoch, {"d": day})
    assert third == (None, None, None, {"d": None})
    assert first[1] == server_text(micros, "Z")


def test_map_with_struct_keys_is_a_list_of_pairs() -> None:
    kind = pa.map_(pa.struct([("a", pa.int32())]), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([[({"a": 1}, "x")], None], kind)], ["m"])
    assert columns.rows(batch) == [([({"a": 1}, "x")],), (None,)]


def test_variant_differs_from_a_string_by_its_type_code() -> None:
    noted = pa.field("v", pa.string(), metadata={b"haproc.type": b"variant"})
    described = columns.describe(pa.schema([noted, pa.field("s", pa.string())]))
    assert described is not None
    assert [each.type_code for each in described] == ["VARIANT", "STRING"]
    assert described[0].type_code == haclient.STRING
