"""Loading files: how they are cut, the requests that a server gets, and resuming a load."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import haclient
from haclient import cli, files
from haclient.files import CsvRecords, FileKind, Loaded, LoadFile, form_of, pieces
from tests.unit.haclient_rig import UNAVAILABLE, Open, connect, servers, settle
from tests.unit.haclient_server import WAIT_S, Server, answering, failing

__all__ = ["connect", "servers"]

LINES = b"".join(b"%d,text %d\n" % (n, n) for n in range(1000))


# -- cutting ---------------------------------------------------------------------------------------

_CELLS = st.text(st.sampled_from('ab",\n\r '), max_size=6)


@given(
    st.lists(st.lists(_CELLS, min_size=1, max_size=3), max_size=30),
    st.integers(1, 50),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_csv_pieces_hold_whole_records(records: list[list[str]], size: int, quoting: Any) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(records)
    data = text.getvalue().encode()
    found = list(pieces(io.BytesIO(data), CsvRecords(",").end, size))
    assert b"".join(found) == data
    read = [row for piece in found for row in csv.reader(io.StringIO(piece.decode(), newline=""))]
    assert read == list(csv.reader(io.StringIO(text.getvalue(), newline="")))


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b'a,5" pipe\nb', 10),
        (b'a,"x\ny', 0),
        (b'a,"x""\n"\nb', 9),
        (b'a;"x\ny"\n', 8),
        (b"no end", 0),
        (b'"",""\r\n', 7),
    ],
)
def test_quotes_count_only_at_the_begin_of_a_field(data: bytes, end: int) -> None:
    assert CsvRecords(",").end(data) == end


def test_csv_record_that_never_ends_raises_an_error() -> None:
    with pytest.raises(haclient.DataError, match="a quote is not closed"):
        list(pieces(io.BytesIO(b'"' + b"x\n" * (4 << 20)), CsvRecords(",").end, 1 << 20))


def test_file_form_follows_from_the_name_or_an_option() -> None:
    assert form_of(Path("a.CSV.gz")).kind is FileKind.CSV
    assert form_of(Path("a.tsv")).query() == {"delimiter": "\t"}
    assert form_of(Path("a.b"), "jsonl", time_zone="UTC").query() == {"time_zone": "UTC"}
    with pytest.raises(haclient.InterfaceError, match=r"say what a\.b holds"):
        form_of(Path("a.b"))
    with pytest.raises(haclient.InterfaceError, match="null says nothing of parquet"):
        form_of(Path("a.parquet"), null="x")


def test_cutting_of_small_arrow_batches_reads_each_size_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.arrows"
    table = pa.table({"n": range(2000), "s": [f"text {n}" for n in range(2000)]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    sizes_read = 0

    class Batch:
        """A batch that counts how often its size is read."""

        def __init__(self, batch: Any) -> None:
            self.batch, self.num_rows = batch, batch.num_rows

        @property
        def nbytes(self) -> int:
            nonlocal sizes_read
            sizes_read += 1
            return int(self.batch.nbytes)

        def slice(self, begin: int, rows: int) -> Batch:
            return Batch(self.batch.slice(begin, rows))

    def table_of(group: list[Batch]) -> Any:
        return pa.Table.from_batches([each.batch for each in group])

    batches = list(files._of_arrow(path))
    plain = [(found.num_rows, share) for found, share in files._grouped(iter(batches), 10_000)]
    monkeypatch.setattr(files, "pa", SimpleNamespace(Table=SimpleNamespace(from_batches=table_of)))
    counted = ((Batch(batch), share) for batch, share in batches)
    assert [(t.num_rows, share) for t, share in files._grouped(counted, 10_000)] == plain
    assert sizes_read <= 2 * len(batches) and len(plain) > 2


# -- through a connection --------------------------------------------------------------------------


def sent(server: Server) -> bytes:
    return b"".join(body for _, _, body in server.bodies)


async def test_csv_is_sent_in_pieces_with_its_columns_and_first_lines(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'id;"a;b"\r\n' + LINES.replace(b",", b";"))
    seen: list[Loaded] = []
    loaded = await settle(
        connect(servers, schema="s").load(
            path, "t", delimiter=";", piece_bytes=4000, on_progress=seen.append, at_once=1
        )
    )
    assert sent(servers[0]) == LINES.replace(b",", b";")
    assert (loaded.rows, loaded.bytes, loaded.size) == (1000, path.stat().st_size, loaded.size)
    assert loaded.pieces == len(servers[0].bodies) == 4
    assert [each.pieces for each in seen] == [0, 1, 2, 3, 4]
    kind, query, _ = servers[0].bodies[1]
    assert (kind, query["columns"], query["delimiter"]) == ("text/csv", "id,a;b", ";")
    assert query["request_id"] == f"{loaded.load_id}.1" and query["schema"] == "s"
    assert query["first_line"] == str(2 + servers[0].bodies[0][2].count(b"\n"))
    assert "age_s" not in query


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_parquet_strings_with_delta_encoding_are_read(tmp_path: Path, encoding: str) -> None:
    path, table = tmp_path / "t.parquet", pa.table({"s": ["p1", "p2", None]})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"s": encoding})
    batches = [batch for batch, _ in files._of_parquet(path, 4000)]
    assert pa.Table.from_batches(batches).equals(table)


async def test_json_lines_parquet_and_arrow_files_are_loaded(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"n":1}\n' * 500))
    assert (await settle(connection.load(packed, "t", piece_bytes=1000))).bytes == (
        packed.stat().st_size
    )
    assert sent(servers[0]) == b'{"n":1}\n' * 500
    table = pa.table({"n": range(5000), "at": [datetime(2026, 1, 1)] * 5000})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=1500, use_deprecated_int96_timestamps=True)
    loaded = await settle(connection.load(path, "t", piece_bytes=8000, at_once=1))
    got = pa.concat_tables([rows for _, _, rows in servers[0].appended])
    assert got.schema.field("at").type == pa.timestamp("us", "UTC") and loaded.rows == 5000
    assert got["n"].equals(table["n"]) and loaded.bytes == path.stat().st_size
    servers[0].appended.clear()
    for open_, name in ((pa.ipc.new_file, "t.arrow"), (pa.ipc.new_stream, "t.arrows")):
        with open_(tmp_path / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        await settle(connection.load(tmp_path / name, "t", piece_bytes=20_000, at_once=1))
        got = pa.concat_tables([rows for _, _, rows in servers[0].appended])
        assert got.equals(table.replace_schema_metadata(None).combine_chunks()) or got == table
        assert len(servers[0].appended) == 4
        servers[0].appended.clear()


async def test_file_without_rows_is_sent_to_check_its_table_and_columns(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    for name, data in (("a.csv", b"id,n\n"), ("b.jsonl", b"")):
        (tmp_path / name).write_bytes(data)
        loaded = await settle(connection.load(tmp_path / name, "t"))
        assert (loaded.rows, loaded.pieces, loaded.bytes) == (0, 1, len(data))
    (_, headed, first), (_, _, second) = servers[0].bodies
    assert (headed["columns"], first, second) == ("id,n", b"", b"")
    empty = pa.table({"n": pa.array([], pa.int32())})
    pq.write_table(empty, tmp_path / "e.parquet")
    for open_, name in ((pa.ipc.new_file, "e.arrow"), (pa.ipc.new_stream, "e.arrows")):
        with open_(tmp_path / name, empty.schema):
            pass
    for name in ("e.parquet", "e.arrow", "e.arrows"):
        assert (await settle(connection.load(tmp_path / name, "t"))).pieces == 1
        _, _, rows = servers[0].appended.pop()
        assert rows.equals(empty)
    servers[0].rows_script += [failing(404, "refused", "HAPROC_NOT_FOUND")]
    with pytest.raises(haclient.DatabaseError, match=r"a.csv, from line 2 on: said by a"):
        await settle(connection.load(tmp_path / "a.csv", "t"))


async def test_file_that_cannot_be_read_sends_nothing(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    (tmp_path / "c.csv").write_bytes(b"")
    with pytest.raises(haclient.DataError, match="the first line is to name the columns"):
        await settle(connection.load(tmp_path / "c.csv", "t"))
    (tmp_path / "d.parquet").write_bytes(b"nonsense")
    with pytest.raises(haclient.DataError, match=r"d.parquet is no parquet"):
        await settle(connection.load(tmp_path / "d.parquet", "t"))
    assert not servers[0].bodies


async def test_resumed_load_sends_only_missing_pieces(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    path = tmp_path / "t.csv"
    path.write_bytes(LINES)
    options = {"columns": ["id", "s"], "piece_bytes": 4000, "at_once": 1}
    servers[0].rows_script += [UNAVAILABLE]
    servers[1].rows_script += [failing(400, "refused", "HAPROC_ROWS_MISFIT")]
    with pytest.raises(haclient.DatabaseError, match=r"t.csv, from line 1 on: said by b") as raised:
        await settle(connection.load(path, "t", **options))
    load_id = raised.value.request_id.removesuffix(".0")
    assert raised.value.hint == f"go on with {load_id}"
    for server in servers:
        server.bodies.clear()
    for known in (f"{load_id}.0", f"{load_id}.2"):
        for server in servers:
            server.written[known] = {"affected_rows": 7}
    loaded = await settle(connection.load(path, "t", resume=load_id, **options))
    assert (loaded.pieces, loaded.skipped, loaded.load_id) == (4, 2, load_id)
    bodies = servers[0].bodies + servers[1].bodies
    assert {query["columns"] for _, query, _ in bodies} == {"id,s"}
    ids = [query["request_id"] for server in servers for _, query, _ in server.bodies]
    assert ids == [f"{load_id}.1", f"{load_id}.3"]
    ages = [float(query["age_s"]) for server in servers for _, query, _ in server.bodies]
    assert all(60 <= age < 200 for age in ages)
    path.write_bytes(LINES + b"1,2\n")
    with pytest.raises(haclient.InterfaceError, match="a load of another file"):
        await settle(connection.load(path, "t", resume=load_id, **options))
    with pytest.raises(haclient.InterfaceError, match="not the id of a load"):
        await settle(connection.load(path, "t", resume="x", **options))


async def test_rejected_piece_is_sent_under_its_next_id(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    path = tmp_path / "t.csv"
    path.write_bytes(LINES)
    options = {"columns": "id,s", "piece_bytes": 4000, "at_once": 1}
    gone = {"kind": "application", "error_class": "TABLE_OR_VIEW_NOT_FOUND", "outcome": "REJECTED"}
    servers[0].rows_script += [failing(422, "application", gone["error_class"], log_offset=7)]
    with pytest.raises(haclient.DatabaseError) as raised:
        await settle(connection.load(path, "t", **options))
    load_id = raised.value.request_id.removesuffix(".0")
    in_log, unlogged = gone | {"log_offset": 7}, gone | {"log_offset": None}
    # Only a rejection in the log is final: any other may be of one attempt among several.
    servers[0].rejected = {
        f"{load_id}.0": in_log,
        f"{load_id}.0.2": in_log,
        f"{load_id}.1": in_log,
        f"{load_id}.2": unlogged,
        f"{load_id}.3": in_log | {"error_class": "HAPROC_ROWS_GONE"},
    }
    servers[0].written[f"{load_id}.1.2"] = {"affected_rows": 7}
    loaded = await settle(connection.load(path, "t", resume=load_id, **options))
    assert (loaded.pieces, loaded.skipped) == (4, 1)
    ids = [query["request_id"] for _, query, _ in servers[0].bodies]
    assert ids == [f"{load_id}.0.3", f"{load_id}.2", f"{load_id}.3"]
    assert all(float(query["age_s"]) >= 60 for _, query, _ in servers[0].bodies)


async def test_piece_with_a_rejection_that_is_not_final_ends_the_load(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    connection = connect(servers)
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,x\n")
    gone = {"kind": "application", "error_class": "TABLE_OR_VIEW_NOT_FOUND", "outcome": "REJECTED"}
    servers[0].rows_script += [failing(422, "application", gone["error_class"], log_offset=7)]
    with pytest.raises(haclient.DatabaseError) as raised:
        await settle(connection.load(path, "t", columns="id,s"))
    load_id = raised.value.request_id.removesuffix(".0")
    error = gone | {"log_offset": 7, "cluster": "a", "message": "no table"}
    servers[0].rejected[f"{load_id}.0"] = error
    servers[0].final = False
    with pytest.raises(
        haclient.DatabaseError, match=r"cluster a rejected it \(no table\)"
    ) as raised:
        await settle(connection.load(path, "t", columns="id,s", resume=load_id))
    assert raised.value.outcome is haclient.exceptions.Outcome.UNKNOWN
    assert f"go on with {load_id}" in raised.value.hint
    assert not servers[0].bodies
    servers[0].final = True
    await settle(connection.load(path, "t", columns="id,s", resume=load_id))
    assert [query["request_id"] for _, query, _ in servers[0].bodies] == [f"{load_id}.0.2"]


@pytest.mark.parametrize("concern", ["all", None])
async def test_piece_that_has_not_met_its_write_concern_is_sent_again_under_its_id(
    connect: Open, servers: list[Server], tmp_path: Path, concern: str | None
) -> None:
    connection = connect(servers)
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,x\n")
    options = {"columns": "id,s", "write_concern": concern}
    loaded = await settle(connection.load(path, "t", **options))
    servers[0].met = {"one"}
    again = await settle(connection.load(path, "t", resume=loaded.load_id, **options))
    first, second = (query for _, query, _ in servers[0].bodies)
    assert again.skipped == 0 and float(second["age_s"]) >= 60
    for name in ("request_id", "write_concern"):
        assert first.get(name) == second.get(name)
    servers[0].met = {concern or "default"}
    again = await settle(connection.load(path, "t", resume=loaded.load_id, **options))
    assert again.skipped == 1 and len(servers[0].bodies) == 2


async def test_offset_of_a_skipped_piece_counts_for_later_session_reads(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,x\n")
    loaded = await settle(connect(servers).load(path, "t", columns="id,s"))
    written_report = {"affected_rows": 1, "cluster": "a", "log_offset": 17, "after_offset": 18}
    servers[0].written[f"{loaded.load_id}.0"] = written_report
    connection = connect(servers)
    await settle(connection.load(path, "t", columns="id,s", resume=loaded.load_id))
    assert (connection.after_offset, connection.last_offset) == (18, 17)


async def test_load_into_another_schema_cannot_be_resumed(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,x\n")
    here = connect(servers, schema="staging")
    loaded = await settle(here.load(path, "t", columns="id,s"))
    for there in (
        connect(servers, schema="prod"),
        connect(servers, catalog="x", schema="staging"),
        connect(servers),
    ):
        with pytest.raises(haclient.InterfaceError, match="another table or schema"):
            await settle(there.load(path, "t", columns="id,s", resume=loaded.load_id))
    assert len(servers[0].bodies) == 1
    await settle(here.load(path, "t", columns="id,s", resume=loaded.load_id))


async def test_load_in_a_session_uses_the_schema_of_the_session_at_its_begin(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(LINES)
    connection = connect(servers)
    await settle(connection.execute("USE sales"))

    def now(schema: str) -> None:
        place = pa.table({"c": ["spark_catalog"], "s": [schema]})
        servers[0].script.append(answering(place))

    now("sales")
    options = {"columns": "id,s", "piece_bytes": 4000}
    loaded = await settle(connection.load(path, "t", **options))
    assert {query["schema"] for _, query, _ in servers[0].bodies} == {"sales"}
    assert not servers[0].script and loaded.pieces == 4
    now("other")
    with pytest.raises(haclient.InterfaceError, match="another table or schema"):
        await settle(connection.load(path, "t", resume=loaded.load_id, **options))
    now("sales")
    again = await settle(connection.load(path, "t", resume=loaded.load_id, **options))
    assert again.skipped == 4


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_file_that_changes_during_a_load_raises_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.table({"n": range(9999)}), path, row_group_size=1000)
    else:
        path.write_bytes(LINES)
    found = LoadFile(path, form_of(path), 4000).pieces()
    assert next(found).number == 0
    with path.open("ab") as file:
        file.write(b"1,more of it")
    with pytest.raises(haclient.DataError, match="was changed while it was loaded"):
        list(found)


def test_file_with_an_unsupported_encoding_has_a_message_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": [1]}), path)

    def unable(*_: object) -> None:
        raise pa.ArrowNotImplementedError("an encoding")

    monkeypatch.setattr(files, "_with_moments", unable)
    with pytest.raises(haclient.DataError, match=r"t\.parquet: Arrow cannot read it: an encoding"):
        list(LoadFile(path, form_of(path)).pieces())


def test_arrow_stream_whose_writer_died_raises_an_error(tmp_path: Path) -> None:
    path, sink = tmp_path / "t.arrow", io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"n": pa.int64()})) as writer:
        writer.write_batch(pa.record_batch({"n": [1]}))
        so_far = sink.getvalue()
        writer.write_batch(pa.record_batch({"n": [2]}))
    path.write_bytes(sink.getvalue())
    (piece,) = LoadFile(path, form_of(path), 4000).pieces()
    assert piece.begins == "row 1"
    for data in (so_far, sink.getvalue()[:-1], b"\xff\xff\xff\xff", b"x"):
        path.write_bytes(data)
        with pytest.raises(haclient.DataError, match=r"t\.arrow is no arrow"):
            list(LoadFile(path, form_of(path), 4000).pieces())


def test_load_digest_changes_when_the_file_would_be_cut_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_bytes(LINES)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t.parquet")

    def digests(size: int) -> list[str]:
        paths = [tmp_path / "t.csv", tmp_path / "t.parquet"]
        return [LoadFile(path, form_of(path), size).digest("t") for path in paths]

    before = digests(4000)
    assert set(before).isdisjoint(digests(4001))
    monkeypatch.setattr(pa, "__version__", "another")
    csv_now, parquet_now = digests(4000)
    assert csv_now == before[0] and parquet_now != before[1]


async def test_error_of_a_piece_ends_the_load_once_the_others_under_way_have_ended(
    connect: Open, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(LINES * 10)
    begun, ended = 0, 0
    refuse = failing(422, "application", "CHECK", "23001")

    async def last_to_begin(*given: Any) -> web.StreamResponse:
        async with asyncio.timeout(WAIT_S):
            while begun < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return await refuse(*given)

    async def last_to_end(server: Server, *_: Any) -> web.StreamResponse:
        nonlocal begun, ended
        begun += 1
        await asyncio.sleep(0.5)
        ended += 1
        return web.json_response({"statement_id": "x", "ha": {"cluster": server.name}})

    servers[0].rows_script += [last_to_begin, last_to_end, last_to_end]
    with pytest.raises(haclient.IntegrityError):
        await settle(connect(servers).load(path, "t", columns="id,s", piece_bytes=4000, at_once=3))
    assert ended == 2
    assert len(servers[0].bodies) < 20


# -- on the command line ---------------------------------------------------------------------------


def test_load_command_reports_rows_resumption_and_errors(
    servers: list[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,s\n" + LINES)
    at = ["--server", servers[0].url]
    assert cli.main(["load", str(path), "--table", "t", *at]) == 0
    out, err = capsys.readouterr()
    assert not out and err.startswith("load ") and "\n1000 rows · 1" in err
    load_id = err.split()[1]
    assert cli.main(["load", str(path), "--table", "t", "--resume", load_id, *at]) == 0
    assert "1 of 1 pieces were there" in capsys.readouterr().err
    assert len(servers[0].bodies) == 1
    servers[0].rows_script += [failing(400, "refused", "HAPROC_ROWS_MISFIT")]
    assert cli.main(["load", str(path), "--table", "t", *at]) == 1
    assert "from line 2 on: said by a\ngo on with --resume " in capsys.readouterr().err
    assert cli.main(["load", str(path), "--table", "t", "--resume", "x", *at]) == 2
    assert cli.main(["load", str(tmp_path / "none.csv"), "--table", "t", *at]) == 2
    path.write_bytes(b"")
    assert cli.main(["load", str(path), "--table", "t", *at]) == 2
