"""Tests of rows as CSV, JSON lines and Parquet: reading, and refusals that name the line."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haproc.engine.arrow import joined, stream_of
from haproc.engine.interface import Column
from haproc.failure import ErrorClass, RequestError
from haproc.route.rows import lines
from haproc.route.rows.forms import Form, FormKind
from haproc.route.rows.parquet_files import parquet_rows
from haproc.route.rows.reading import fitted, pieces

COLUMNS = [
    Column("id", "bigint", nullable=False),
    Column("Name", "string"),
    Column("price", "decimal(10,2)"),
    Column("at", "timestamp"),
    Column("day", "date"),
]
CSV, JSON, PARQUET = FormKind.CSV, FormKind.JSON_LINES, FormKind.PARQUET
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rows(data: bytes, form: Form, columns: list[Column] = COLUMNS) -> list[dict[str, Any]]:
    found = list(pieces(io.BytesIO(data), columns, 64 << 20, form, parquet_rows))
    table = pa.ipc.open_stream(joined([chunk.data for chunk in found])).read_all()
    assert table.num_rows == sum(chunk.rows for chunk in found)
    return list(table.to_pylist())


def refusal(data: bytes, form: Form, columns: list[Column] = COLUMNS) -> str:
    with pytest.raises(RequestError) as raised:
        rows(data, form, columns)
    assert raised.value.error_class == ErrorClass.ROWS_MISFIT
    return str(raised.value)


# -- CSV -----------------------------------------------------------------------------------------

BODY = (
    b"\xef\xbb\xbfNAME,id,price,at,day\r\n"
    b'"",1,1.5,2026-01-31T12:00:00Z,2026-01-31\r\n'
    b",2,,,\r\n\r\n"
    b'"a ""b"", c\nd",3,-7,2026-01-31 13:00:00+01:00,\n'
    b'"5"" pipe",4,,,'
)


def test_csv_fields_are_read_by_the_types_of_their_columns() -> None:
    found = rows(BODY, Form(CSV))
    assert [row["NAME"] for row in found] == ["", None, 'a "b", c\nd', '5" pipe']
    assert [row["id"] for row in found] == [1, 2, 3, 4]
    assert [row["price"] for row in found[:3]] == [Decimal("1.50"), None, Decimal("-7.00")]
    assert [row["at"] for row in found[:3]] == [NOON, None, NOON]
    assert found[0]["day"] == date(2026, 1, 31)


def test_csv_dialect_and_columns_are_taken_from_the_request() -> None:
    form = Form(CSV, columns='id,"Name"', delimiter=";", null="\\N")
    assert rows(b"1;x\n2;\\N\n3;\n", form) == [
        {"id": 1, "Name": "x"},
        {"id": 2, "Name": None},
        {"id": 3, "Name": ""},
    ]
    own = Form(CSV, columns="*", time_zone="Europe/Zurich")
    (row,) = rows(b"1,x,2,2026-01-31 13:00:00,2026-01-31\n", own)
    assert list(row) == ["id", "Name", "price", "at", "day"] and row["at"] == NOON
    assert rows(b"", own) == rows(b"id\n", Form(CSV)) == rows(b"id", Form(CSV)) == []
    assert rows(b"\r\n\n", Form(CSV, columns="id,Name")) == []


@pytest.mark.parametrize(
    ("data", "form", "problem"),
    [
        (b"", Form(CSV), "the first line is to name the columns"),
        (b"id,x\n", Form(CSV), "the table has no column x"),
        (b"id,ID\n1,2\n", Form(CSV), "column ID comes twice"),
        (b"Name\nx\n", Form(CSV), "column id is missing and must not be null"),
        (b"," * 1000 + b"\n", Form(CSV), "names 1001 columns, the table has 5"),
        (b"id\n1\n2\nx\n4\n", Form(CSV), "line 4: column id (int64)"),
        (b"id,Name\n1,'\n\n2\n", Form(CSV), "line 4: CSV parse error"),
        (b"id,Name\n1,a\rb\n", Form(CSV), "a carriage return that is not in quotes ends a record"),
        (b'id,Name\n1,"a\nb\nc"\nx,"d"\n', Form(CSV), "line 5: column id"),
        (b"id,Name\n1,a\n,b\n", Form(CSV), "line 3: column id must not be null"),
        (b'id\n""\n', Form(CSV), "line 2: column id"),
        (b"id,price\n1,1.234\n", Form(CSV), "line 2: column price (decimal128(10, 2))"),
        *(
            (b"id,price\n1," + number + b"\n", Form(CSV), "line 2: column price")
            for number in (b"1e-77", b"1e-2000000000", b"99E8", b"1_0", b"x", b"1e-2x")
        ),
        (b"id\n7\n0xFFFFFFFFFFFFFFFF\n", Form(CSV), "line 3: column id"),
        (b"id,at\n1,2026-01-31 12:00:00\n", Form(CSV), "line 2: column at"),
        (b"id,Name\n1,\xff\n", Form(CSV), "line 2: column Name"),
        (b'id,Name\n7,a\n1,"never\nends\n', Form(CSV), "line 3: the last record never ends"),
        (b"7,a\nx,b\n", Form(CSV, columns="id,Name", first_line=1000), "line 1001: column id"),
        (b"7\n", Form(CSV, columns='"id'), "not a line of CSV"),
        (
            b"id,at\n1,2026-03-29 02:30:00\n",
            Form(CSV, time_zone="Europe/Zurich"),
            "line 2",
        ),
    ],
)
def test_csv_that_does_not_fit_is_refused_with_its_line(
    data: bytes, form: Form, problem: str
) -> None:
    assert problem in refusal(data, form)


def test_csv_numbers_are_read_exactly() -> None:
    texts = ["+1.5", " 2 ", ".5", "1e2", "12E-1", "-0", "7."]
    body = "id,Name,price\n" + "".join(f" 7 ,0x7,{text}\n" for text in texts)
    found = rows(body.encode(), Form(CSV))
    assert [row["price"] for row in found] == [Decimal(text.strip()) for text in texts]
    assert {(row["id"], row["Name"]) for row in found} == {(7, "0x7")}


def test_byte_order_mark_is_text_unless_the_body_begins_its_file() -> None:
    data = "\ufeffx,1\n".encode()
    for first_line, name in ((1, "x"), (2, "\ufeffx")):
        form = Form(CSV, columns="Name,id", first_line=first_line)
        assert rows(data, form) == [{"Name": name, "id": 1}]
    mark = "\ufeff".encode()
    assert rows(mark + b'{"id":1}\n', Form(JSON, columns="id")) == [{"id": 1}]
    assert "line 2: not JSON" in refusal(mark + b'{"id":1}\n', Form(JSON, first_line=2))


@settings(max_examples=30)
@pytest.mark.parametrize("form", [Form(CSV), Form(JSON)])
@given(
    text=st.from_regex(r"-?[0-9]{1,38}(\.[0-9]{1,38})?(E-?[0-9]{1,2})?", fullmatch=True),
    digits=st.integers(1, 38),
    scale=st.integers(0, 38),
)
@example(text="75", digits=38, scale=38)
@example(text="79E4", digits=38, scale=38)
@example(text="799998042814810900.99", digits=38, scale=35)
def test_decimals_are_read_exactly_or_refused(
    form: Form, text: str, digits: int, scale: int
) -> None:
    columns = [Column("d", f"decimal({digits},{min(digits, scale)})")]
    body = f'{{"d":"{text}"}}\n' if form.kind is JSON else f"d\n{text}\n"
    try:
        (row,) = rows(body.encode(), form, columns)
    except RequestError as error:
        assert error.error_class == ErrorClass.ROWS_MISFIT
    else:
        assert row["d"] == Decimal(text)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_float_is_infinite_only_if_it_is_written_as_infinity(kind: str) -> None:
    columns = [Column("f", kind)]
    infinite = [-float("inf"), 1.5, None, float("inf")]
    found = rows(b'{"f":"-Infinity"}\n{"f":1.5}\n{}\n{"f":"Infinity"}\n', Form(JSON), columns)
    assert [row["f"] for row in found] == infinite
    found = rows(b"g,f\n,-inf\n,1.5\n,\n,Infinity\n", Form(CSV), [*columns, Column("g", "int")])
    assert [row["f"] for row in found] == infinite
    for number in (b"1e400", b"-1e400", *([b"1e40"] if kind == "float" else [])):
        problem = f"line 3: column f ({kind}): '{number.decode()}' is out of range"
        assert problem in refusal(b"f\ninf\n" + number + b"\n", Form(CSV), columns)
        assert "out of range" in refusal(b'{"f":' + number + b"}\n", Form(JSON), columns)
    lists = [Column("l", "array<double>")]
    assert "out of range" in refusal(b'{"l":[1,1e400]}\n', Form(JSON), lists)


def test_csv_text_that_begins_with_a_byte_order_mark_is_kept() -> None:
    found = rows("Name,id\n\ufeff,1\n".encode(), Form(CSV))
    assert found == [{"Name": "\ufeff", "id": 1}]


def test_csv_of_nested_types_is_refused() -> None:
    problem = refusal(b"a\n1\n", Form(CSV), [Column("a", "array<int>")])
    assert "array<int>, which text/csv has no form for" in problem


def test_record_without_an_end_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 5000)
    assert "line 1: a record has more than 5000 bytes, or never ends" in refusal(
        b"1" * 9000, Form(CSV, columns="id")
    )


# -- JSON lines ------------------------------------------------------------------------------------

NESTED = [
    Column("n", "int", nullable=False),
    Column("s", "struct<a:int,t:timestamp>"),
    Column("l", "array<decimal(5,1)>"),
    Column("m", "map<string,date>"),
    Column("b", "binary"),
    Column("x", "double"),
    Column("c", "time(6)"),
    Column("t", "timestamp_ntz"),
]


def test_json_lines_values_of_all_types_are_read() -> None:
    first = {
        "N": 1,
        "s": {"a": None, "t": "2026-01-31T12:00:00Z"},
        "l": [1, "2.5", None],
        "m": {"k": "2026-01-31"},
        "b": "AAE=",
        "x": "NaN",
        "c": "12:30:00.5",
        "t": "2026-01-31 12:00:00",
    }
    data = json.dumps(first).encode() + b'\n\n{"n":2,"l":[0.1],"x":1e3}\r\n{"n":3,"s":{}}'
    one, two, three = rows(data, Form(JSON), NESTED)
    assert one["s"] == {"a": None, "t": NOON}
    assert one["l"] == [Decimal("1.0"), Decimal("2.5"), None]
    assert one["m"] == [("k", date(2026, 1, 31))]
    assert (one["b"], one["c"]) == (b"\x00\x01", time(12, 30, 0, 500_000))
    assert one["x"] != one["x"] and one["t"] == NOON.replace(tzinfo=None)
    assert (two["l"], two["x"], two["s"]) == ([Decimal("0.1")], 1000.0, None)
    assert three["s"] == {"a": None, "t": None}


def test_json_lines_columns_are_taken_from_the_request() -> None:
    assert rows(b'{"id":1}\n', Form(JSON, columns="id")) == [{"id": 1}]
    assert rows(b"", Form(JSON)) == []
    (row,) = rows(b'{"id":1,"at":"2026-01-31T13:00:00"}', Form(JSON, time_zone="Europe/Zurich"))
    assert row["at"] == NOON


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"null", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"id":1}{"id":2}', "not JSON"),
        (b'{"id":', "not JSON"),
        (b'{"id":' + b"[" * 100_000, "nested too deeply"),
        (b"\xff", "not UTF-8"),
        (b'{"id":1,"y":2}', "there is no column y"),
        (b'{"id":1,"ID":2}', "column id comes twice"),
        (b'{"id":1,"id":2}', "id comes twice"),
        (b'{"id" :1, "id"\t:2}', "id comes twice"),
        (b'{"id":1,"Name":"a\\":b","id":2}', "id comes twice"),
        (b"{}", "column id must not be null"),
        (b'{"id":"1"}', "column id (int64)"),
        (b'{"id":1.5}', "column id (int64)"),
        (b'{"id":true}', "column id (int64)"),
        (b'{"id":' + b"9" * 30 + b"}", "column id (int64)"),
        (b'{"id":1,"Name":2}', "column Name (string)"),
        (b'{"id":1,"Name":"\\ud800"}', "column Name (string)"),
        (b'{"id":1,"price":1.005}', "column price"),
        (b'{"id":1,"price":"NaN"}', "column price"),
        (b'{"id":1,"price":"x"}', "column price"),
        (b'{"id":1,"price":1e-77}', "column price"),
        (b'{"id":1,"price":"1e-2000000000"}', "column price"),
        (b'{"id":1,"price":1e9999999999999999999}', "exponent that is out of range"),
        (b'{"id":1e-9999999999999999999}', "exponent that is out of range"),
        (b'{"id":1,"at":"2026-01-31 12:00:00"}', "(give each a time zone, or say time_zone)"),
        (
            b'{"id":1,"at":"2026-01-31 12:00:00.1234567Z"}',
            "column at (timestamp[us, tz=UTC]): Failed to parse",
        ),
        (b'{"id":1,"day":20000}', "column day"),
    ],
)
def test_json_lines_that_do_not_fit_are_refused_with_their_line(line: bytes, problem: str) -> None:
    found = refusal(b'{"id":1}\n\n' * 20 + line + b'\n{"id":2}\n', Form(JSON))
    assert problem in found and "line 41: " in found


class Surprise(Exception):
    """An error that no list of a reader's errors contains."""


def surprise(*_: object) -> pa.RecordBatch:
    raise Surprise("x" * 1000)


@pytest.mark.parametrize(
    ("reader", "form", "problem"),
    [
        ("csv_lines.CsvLines.decode", Form(CSV), "line 2: not to be read: xxx"),
        ("json_lines.JsonLines.decode", Form(JSON), "line 1: not to be read: xxx"),
        ("reading.converted", Form(CSV), "not CSV: xxx"),
    ],
)
def test_reading_error_of_any_kind_is_reported_as_a_misfit(
    monkeypatch: pytest.MonkeyPatch, reader: str, form: Form, problem: str
) -> None:
    monkeypatch.setattr(f"haproc.route.rows.{reader}", surprise)
    found = refusal(b"id\n1\n", form)
    assert problem in found and len(found) < 300


def test_memory_error_is_not_reported_as_a_misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> pa.RecordBatch:
        raise MemoryError

    monkeypatch.setattr("haproc.route.rows.csv_lines.CsvLines.decode", full)
    with pytest.raises(MemoryError):
        rows(b"id\n1\n", Form(CSV))


@given(st.binary(max_size=60), st.sampled_from([CSV, JSON, PARQUET]))
def test_noise_is_read_or_refused(noise: bytes, kind: FormKind) -> None:
    try:
        rows(noise, Form(kind))
    except RequestError as error:
        assert error.error_class == ErrorClass.ROWS_MISFIT


# -- Parquet ---------------------------------------------------------------------------------------


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_parquet_rows_of_several_groups_are_read() -> None:
    table = pa.table({"id": range(10_000), "NAME": [f"n{n % 7}" for n in range(10_000)]})
    found = rows(parquet(table, row_group_size=1000), Form(PARQUET))
    assert found == table.to_pylist()
    nested = pa.table({"l": [["x"], None, ["y", "z"]]})
    assert rows(parquet(nested), Form(PARQUET), [Column("l", "array<string>")]) == (
        nested.to_pylist()
    )
    assert rows(parquet(table.slice(0, 0)), Form(PARQUET)) == []
    renamed = rows(parquet(pa.table({"x": [1]})), Form(PARQUET, columns="id"))
    assert renamed == [{"id": 1}]


def test_parquet_timestamps_in_sparks_older_form_are_read() -> None:
    table = pa.table({"id": [1], "at": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))})
    data = parquet(table, use_deprecated_int96_timestamps=True)
    assert rows(data, Form(PARQUET)) == [{"id": 1, "at": NOON}]
    renamed = [Column("id", "bigint"), Column("begins", "timestamp")]
    assert rows(data, Form(PARQUET, columns="id,begins"), renamed) == [{"id": 1, "begins": NOON}]
    local = [Column("id", "bigint"), Column("at", "timestamp_ntz")]
    assert "column at is timestamp_ntz" in refusal(data, Form(PARQUET), local)


def test_parquet_long_text_in_many_rows_is_split_before_it_is_unpacked() -> None:
    text = "x" * 100_000
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array([text]))
    data = parquet(pa.table({"Name": values.cast(pa.string()), "id": range(400)}))
    assert len(data) < 1_000_000
    found = list(pieces(io.BytesIO(data), COLUMNS, 8 << 20, Form(PARQUET), parquet_rows))
    assert sum(chunk.rows for chunk in found) == 400
    assert max(len(chunk.data) for chunk in found) < 8 << 20


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_parquet_texts_are_read_in_each_encoding(encoding: str) -> None:
    table = pa.table({"Name": [f"text {n}" for n in range(300)], "id": range(300)})
    encodings = {"use_dictionary": False, "column_encoding": {"Name": encoding}}
    assert rows(parquet(table, row_group_size=100, **encodings), Form(PARQUET)) == table.to_pylist()
    nested = pa.table({"l": [["x"], None, ["xy", "xz"]]})
    encodings["column_encoding"] = {"l.list.element": encoding}
    columns = [Column("l", "array<string>")]
    assert rows(parquet(nested, **encodings), Form(PARQUET), columns) == nested.to_pylist()


def test_parquet_texts_that_share_a_long_prefix_are_read_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haproc.route.rows.parquet_files.REPEATED_BYTES_MAX", 4 << 20)
    texts, whole = ["x" * 100_000] * 400, {"compression": "none", "data_page_size": 1 << 30}
    differences = {"a": "DELTA_BYTE_ARRAY", "b": "DELTA_BYTE_ARRAY"}
    of_columns = parquet(
        pa.table({"a": texts, "b": texts, "id": range(400)}),
        use_dictionary=["id"],
        column_encoding=differences,
        **whole,
    )
    of_lists = parquet(
        pa.table({"l": [texts[:4]] * 100}),
        use_dictionary=False,
        column_encoding={"l.list.element": "DELTA_BYTE_ARRAY"},
        **whole,
    )
    for data in (of_columns, of_lists):
        assert len(data) < 300_000
        _, batches = parquet_rows(io.BytesIO(data), COLUMNS, 4 << 20)
        sizes = [batch.nbytes for batch in batches]
        assert max(sizes) <= 4 << 20 and sum(sizes) > 400 * 100_000


def test_parquet_dictionary_texts_read_as_plain_texts_come_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haproc.route.rows.parquet_files.REPEATED_BYTES_MAX", 4 << 20)
    table = pa.table({"Name": ["x" * 100_000] * 400})
    data = parquet(table, compression="none", dictionary_pagesize_limit=1 << 30)
    monkeypatch.setattr("haproc.route.rows.parquet_files._dictionaries", lambda _: [])
    _, batches = parquet_rows(io.BytesIO(data), COLUMNS, 64 << 20)
    assert max(batch.nbytes for batch in batches) <= 4 << 20


def test_parquet_values_of_a_large_fixed_length_count_with_their_length() -> None:
    values = pa.array([b"x" * 100_000] * 400, pa.binary(100_000))
    data = parquet(pa.table({"b": values}), compression="none")
    assert len(data) < 300_000
    _, batches = parquet_rows(io.BytesIO(data), [Column("b", "binary")], 4 << 20)
    assert max(batch.nbytes for batch in batches) <= 4 << 20


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pa.ArrowNotImplementedError("an encoding"), "Arrow cannot read it: an encoding"),
        (pa.ArrowMemoryError("realloc failed"), "row group 1 takes too much memory"),
    ],
    ids=["not implemented", "memory"],
)
def test_parquet_that_arrow_is_unable_to_read_is_not_called_wrong(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", unable)
    problem = refusal(parquet(pa.table({"id": [1]})), Form(PARQUET))
    assert reason in problem and "not a Parquet file" not in problem


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a Parquet file"),
        (b"PAR1 nonsense PAR1", "not a Parquet file"),
        (parquet(pa.table({"id": ["x"]})), "column id is bigint: string does not fit"),
        (parquet(pa.table({"id": [1]}))[:-9], "not a Parquet file"),
    ],
)
def test_parquet_that_does_not_fit_is_refused(data: bytes, problem: str) -> None:
    assert problem in refusal(data, Form(PARQUET))


# -- Arrow -----------------------------------------------------------------------------------------


def test_parquet_list_of_very_many_items_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haproc.route.rows.parquet_files.LIST_ITEMS_MAX", 10_000)
    columns = [Column("l", "array<bigint>")]
    for rows_of_ten, fine in ((1000, True), (1200, False)):
        file = io.BytesIO()
        pq.write_table(pa.table({"l": [[7] * 10] * rows_of_ten}), file)
        if fine:
            assert len(rows(file.getvalue(), Form(PARQUET), columns)) == rows_of_ten
        else:
            problem = refusal(file.getvalue(), Form(PARQUET), columns)
            assert "l.list.element has more than 10000 items in lists" in problem


@pytest.mark.parametrize("dictionary", [False, True])
def test_parquet_text_that_is_not_utf8_is_refused(dictionary: bool) -> None:
    ends = pa.py_buffer(b"\0\0\0\0\x02\0\0\0\x03\0\0\0")
    texts = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"a\xffb")])
    file = io.BytesIO()
    pq.write_table(pa.table({"Name": texts, "id": [1, 2]}), file, use_dictionary=dictionary)
    assert "UTF8" in refusal(file.getvalue(), Form(PARQUET))


def test_arrow_rows_are_matched_by_position_or_by_names_of_the_request() -> None:
    sent = stream_of(pa.table({"0": [1], "1": ["x"]}))
    for columns in ('id,"Name"', "*"):
        own = COLUMNS[:2]
        stream = fitted(sent, own, 1 << 20, Form(columns=columns))
        assert pa.ipc.open_stream(stream).read_all().to_pylist() == [{"id": 1, "Name": "x"}]
    with pytest.raises(RequestError, match="the rows have 2 columns, and 5 are named"):
        fitted(sent, COLUMNS, 1 << 20, Form(columns="*"))


def test_many_wrong_columns_are_counted_in_the_error() -> None:
    table = pa.table({f"c{n}": [1] for n in range(5000)})
    problem = refusal(parquet(table), Form(PARQUET))
    assert "and 4981 more" in problem and len(problem) < 2000
