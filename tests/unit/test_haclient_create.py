"""`haclient load --create`: the table that a file's rows fit into, created once before them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haclient import cli, output
from haclient.exceptions import DataError, InterfaceError
from haclient.file_schemas import (
    TableColumn,
    create_statement,
    differences,
    of_result,
    sql_type,
    stated_types,
    table_of,
)
from haclient.files import Loaded, LoadFile, form_of
from haclient.load_command import Bar
from tests.unit.haclient_rig import server
from tests.unit.haclient_server import Server, answering, failing, reset

__all__ = ["server"]

Capture = pytest.CaptureFixture[str]


def columns(path: Path, types: str | None = None, size: int = 1 << 20, **options: str) -> list[str]:
    file = LoadFile(path, form_of(path, **options), size)
    return [f"{each.name} {each.type}" for each in table_of(file, stated_types(types))]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "TINYINT"),
        (pa.uint16(), "INT"),
        (pa.uint64(), "DECIMAL(20,0)"),
        (pa.float16(), "FLOAT"),
        (pa.float64(), "DOUBLE"),
        (pa.bool_(), "BOOLEAN"),
        (pa.null(), "STRING"),
        (pa.large_string(), "STRING"),
        (pa.string_view(), "STRING"),
        (pa.binary(), "BINARY"),
        (pa.binary(4), "BINARY"),
        (pa.date64(), "DATE"),
        (pa.timestamp("ns"), "TIMESTAMP_NTZ"),
        (pa.timestamp("s", "Asia/Tokyo"), "TIMESTAMP"),
        (pa.decimal128(10, 2), "DECIMAL(10,2)"),
        (pa.decimal128(3, -2), "DECIMAL(5,0)"),
        (pa.dictionary(pa.int8(), pa.string()), "STRING"),
        (pa.list_(pa.decimal128(4, 1)), "ARRAY<DECIMAL(4,1)>"),
        (pa.map_(pa.string(), pa.int32()), "MAP<STRING, INT>"),
        (pa.struct({"a`b": pa.int64()}), "STRUCT<`a``b`: BIGINT>"),
    ],
)
def test_arrow_type_has_a_sql_type_that_holds_its_values(kind: pa.DataType, expected: str) -> None:
    assert sql_type(kind) == expected


@pytest.mark.parametrize(
    "kind",
    [pa.time64("us"), pa.duration("s"), pa.month_day_nano_interval(), pa.decimal256(60, 2)],
)
def test_arrow_type_without_a_table_type_raises_an_error(kind: pa.DataType) -> None:
    with pytest.raises(DataError, match="--types"):
        sql_type(pa.list_(kind))


def test_csv_columns_have_types_that_fit_all_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "id,price,day,at,when,ok,clock,name,nothing,late"
    first = '1,1.5,2026-01-02,2026-01-02 03:04:05,2026-01-02T03:04:05Z,true,12:00:00,"a\nb",,7'
    later = '2,3,,,,false,,"",,x'
    path.write_text("\n".join([head, *[first] * 50, *[later] * 50]) + "\n")
    expected = [
        *("id BIGINT", "price DOUBLE", "day DATE", "at TIMESTAMP_NTZ", "when TIMESTAMP"),
        *("ok BOOLEAN", "clock STRING", "name STRING", "nothing STRING", "late STRING"),
    ]
    for size in (1 << 20, 500):  # whatever the pieces
        assert columns(path, size=size) == expected
    path.write_text("at\n2026-01-02 03:04:05\n")
    assert columns(path, time_zone="Asia/Tokyo") == ["at TIMESTAMP"]
    path.write_text("1;-\n2;x\n")
    assert columns(path, columns="n,s", delimiter=";", null="-") == ["n BIGINT", "s STRING"]
    assert columns(path, "S varchar(3)", columns="n,s", delimiter=";")[1] == "s varchar(3)"
    path.write_text("id,s\n")
    assert columns(path) == ["id STRING", "s STRING"]


def test_csv_number_with_a_leading_zero_or_plus_is_a_string(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zip,n,tel,f,at\n8004,-1,+41,0.5,2026-01-02 03:04:05\n0123,0,,1e+05,\n")
    for size in (1 << 20, 1):
        assert columns(path, size=size) == [
            *("zip STRING", "n BIGINT", "tel STRING", "f DOUBLE", "at TIMESTAMP_NTZ")
        ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a,b\n1\n", "from line 2 on: no csv: .*Expected 2 columns"),
        (b"a,A\n1,2\n", "a column comes twice: a,A"),
        (b"a,b\n\xff,2\n", "column a is no UTF-8"),
        (b'a,b\n"1,2\n', "from line 2 on: no csv|not closed"),
    ],
)
def test_malformed_csv_raises_an_error_with_its_place(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(DataError, match=problem):
        columns(path)


def test_json_lines_have_json_types_and_mixed_values_need_a_stated_type(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"n": 1, "f": 1, "t": ["x"], "s": {"a": None}}, {"f": 1.5, "late": True, "s": {"a": 2}}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    for size in (1 << 20, 1):
        assert columns(path, size=size) == [
            *("n BIGINT", "f DOUBLE", "t ARRAY<STRING>", "s STRUCT<`a`: BIGINT>", "late BOOLEAN")
        ]
    path.write_text('{"m": 1}\n{"m": "x"}\n')
    for size in (1 << 20, 1):
        with pytest.raises(DataError, match=r"column m holds .* with --types"):
            columns(path, size=size)
    assert columns(path, "m VARIANT") == ["m VARIANT"]
    path.write_text("[1]\n")
    with pytest.raises(DataError, match="from line 1 on: no jsonl: not an object"):
        columns(path)
    path.write_text("")
    with pytest.raises(DataError, match=r"t\.jsonl names no columns"):
        columns(path)


def test_parquet_columns_have_the_types_of_the_file_or_the_stated_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": pa.array([1], pa.int16()), "d": [None]}), path)
    assert columns(path, "d DATE") == ["n SMALLINT", "d DATE"]
    with pytest.raises(InterfaceError, match="no column x; it has n, d"):
        columns(path, "x INT")
    with pytest.raises(InterfaceError, match="leave --columns out"):
        columns(path, columns="n")
    path.write_text("none")
    with pytest.raises(DataError, match="is no parquet"):
        columns(path)


def test_stated_types_may_contain_commas() -> None:
    text = "id INT, `a,b` DECIMAL(10, 2), S STRUCT<x: INT, y: MAP<STRING, INT>>,"
    assert stated_types(text) == {
        "id": "INT",
        "a,b": "DECIMAL(10, 2)",
        "s": "STRUCT<x: INT, y: MAP<STRING, INT>>",
    }
    assert stated_types(None) == {}
    for wrong in ("id", "'x' INT"):
        with pytest.raises(InterfaceError, match="is not NAME TYPE"):
            stated_types(wrong)


def test_create_statement_quotes_names_and_differences_are_described() -> None:
    expected_columns = [TableColumn("a b", "INT"), TableColumn("c", "DECIMAL(10, 2)")]
    assert create_statement("s.my-t", expected_columns) == (
        "CREATE TABLE `s`.`my-t` (`a b` INT, `c` DECIMAL(10, 2)) USING delta"
    )
    assert create_statement("s.`x.y`", expected_columns[:1]).startswith("CREATE TABLE s.`x.y` (")
    there = of_result(pa.schema({"A B": pa.int32(), "c": pa.decimal128(10, 2)}))
    assert differences(expected_columns, there) == []
    there = of_result(pa.schema({"c": pa.time64("us"), "d": pa.string()}))
    assert differences(expected_columns, there) == [
        *("it has no `a b` INT", "the file has no `d` STRING"),
        "`c` TIME is DECIMAL(10, 2) in the file",
    ]


def load(server: Server, path: Path, *more: str) -> int:
    return cli.main(["load", str(path), "--table", "t", "--server", server.url, *more])


def test_load_creates_the_table_once_under_its_own_id(
    server: Server, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,s\n1,x\n")
    server.script.append(reset)
    assert load(server, path, "--create", "--types", "id INT") == 0
    error_output = capsys.readouterr().err
    assert "table t, inferred (--types says others): `id` INT, `s` STRING" in error_output
    load_id = next(
        line.split()[1] for line in error_output.splitlines() if line.startswith("load ")
    )
    again = load(server, path, "--create", "--types", "id INT", "--resume", load_id)
    assert again == 0
    first, repeated, resumed = server.seen
    assert first["statement"] == "CREATE TABLE `t` (`id` INT, `s` STRING) USING delta"
    assert {each["request_id"] for each in server.seen} == {f"{load_id}.create"}
    assert first["statement"] == repeated["statement"] == resumed["statement"]
    assert resumed["age_s"] >= 60 > repeated["age_s"]
    assert len(server.bodies) == 1


def test_load_into_an_existing_table_needs_the_same_columns(
    server: Server, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,s\n1,x\n")
    exists = failing(422, "application", "TABLE_OR_VIEW_ALREADY_EXISTS", "42P07")
    same = pa.table({"ID": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    server.script.extend([exists, answering(same)])
    assert load(server, path, "--create") == 0
    assert "table t exists, with these columns" in capsys.readouterr().err
    assert server.seen[1]["consistency"] == "linearizable"
    server.script.extend([exists, answering(same.drop_columns(["ID"]))])
    assert load(server, path, "--create") == output.EXIT_USAGE
    assert "t exists and has other columns: it has no `id` BIGINT." in capsys.readouterr().err
    assert len(server.bodies) == 1


def test_load_whose_table_is_rejected_loads_nothing(
    server: Server, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,s\n1,x\n")
    server.script.append(failing(422, "application", "SCHEMA_NOT_FOUND", "42704"))
    assert load(server, path, "--create") == output.EXIT_REJECTED
    error_output = capsys.readouterr().err
    assert "class SCHEMA_NOT_FOUND" in error_output and "--resume" not in error_output
    assert not server.bodies
    assert load(server, path, "--types", "id INT") == output.EXIT_USAGE
    server.stop()
    assert load(server, path, "--create", "--wait", "0") == output.EXIT_UNAVAILABLE
    assert "go on with --resume" in capsys.readouterr().err


def test_progress_bar_shows_share_rate_and_remaining_time() -> None:
    at = [0.0]
    out = io.StringIO()
    bar = Bar(out, True, lambda: at[0])
    at[0] = 2.0
    bar.show(Loaded("x", 8 << 20, bytes=2 << 20, rows=10, pieces=1))
    assert out.getvalue() == (
        "\r[#######.......................]  25% · 10 rows · 2.0 MiB · 1.0 MiB/s · 6 s left"
    )
    bar.end()
    assert out.getvalue().endswith(" \r")
    silent = io.StringIO()
    Bar(silent, False).show(Loaded("x", 0))
    assert silent.getvalue() == ""
