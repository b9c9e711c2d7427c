"""The ends of CSV records and valid quotes: in blocks of the server and pieces of the client."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.files import BOM, CsvRecords, LoadFile, form_of, pieces
from haproc.engine.interface import Column
from haproc.route.rows import lines
from haproc.route.rows.csv_lines import Records
from haproc.route.rows.forms import Form, FormKind, RowsError
from haproc.route.rows.lines import blocks
from tests.unit.test_rows_forms import refusal, rows

CSV = FormKind.CSV


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_csv_empty_line_is_a_record_if_records_have_one_field(
    monkeypatch: pytest.MonkeyPatch, block: int, end: bytes
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    name, number = [Column("Name", "string")], [Column("n", "int")]
    data = b'\n\na\n\n"b\n\n"\n\n""\n\n'.replace(b"\n", end)
    quoted = b"b\n\n".replace(b"\n", end).decode()
    for null, empty in (("", None), ("NULL", "")):
        for header, form in (
            (b"Name" + end, Form(CSV, null=null)),
            (b"", Form(CSV, columns="Name", null=null)),
        ):
            found = [row["Name"] for row in rows(header + data, form, name)]
            assert found == [empty, empty, "a", empty, quoted, empty, "", empty]
    found = rows(b"n\n1\n\n2".replace(b"\n", end), Form(CSV), number)
    assert [row["n"] for row in found] == [1, None, 2]
    message = refusal(b"n\n1\n\n2\n\n".replace(b"\n", end), Form(CSV, null="NULL"), number)
    assert "line 3: column n (int32)" in message
    message = refusal(b"id\n1\n2\n\n".replace(b"\n", end), Form(CSV))
    assert "line 4: column id must not be null" in message


@pytest.mark.parametrize("block", [2, 3, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_csv_empty_last_field_is_null_with_or_without_a_line_end(
    monkeypatch: pytest.MonkeyPatch, block: int, end: bytes
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    own = [Column("a", "string"), Column("n", "int"), Column("b", "string")]
    for record in (b'x,"1",', b'"x",1,', b'x,1,""'):
        found = rows(b'"a",n,"b"\ny,2,"z"\n' + record + end, Form(CSV), own)
        last = "" if record.endswith(b'"') else None
        assert found == [{"a": "y", "n": 2, "b": "z"}, {"a": "x", "n": 1, "b": last}]
    found = rows(b'"n","a"\n1,"x"\n2,"y",'[:-1] + end, Form(CSV), own[:2])
    assert found == [{"n": 1, "a": "x"}, {"n": 2, "a": "y"}]


_MISQUOTED = "a field with a quote in it is to stand in quotes"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "record",
    [
        b'"x"y,2',
        b'"x" "y",2',
        b'x"y,2',
        b'x"",2',
        b'"x" ,2',
        b' "x",2',
        b'"a\nb"c,2',
        b'"x"y"z",2',
        b'"x""y"z,2',
        b"\"x\"';2',2",
        b'"x"y,"\n"',
    ],
)
def test_csv_misplaced_quotes_are_refused_with_their_line(
    monkeypatch: pytest.MonkeyPatch, block: int, record: bytes
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    before, form = b'Name,id\n"a\n\nb",1\nc,1\n', Form(CSV)
    for end in (b"\n", b"\r\n", b"\n\nd,3\n", b'\n"d",3\n', b'\n"d'):
        assert f"line 6: {_MISQUOTED}" in refusal(before + record + end, form)
    semicolon = (before + record + b"\n").replace(b",", b";")
    assert f"line 6: {_MISQUOTED}" in refusal(semicolon, Form(CSV, delimiter=";"))


def accepted(data: bytes) -> bool:
    """Return True if a server accepts the quotes of a body."""
    records = Records(",")
    try:
        return all(records.well_quoted(each) for each in blocks(io.BytesIO(data), records.cut))
    except RowsError:
        return False


@given(
    st.lists(
        st.sampled_from(['"', '""', ",", "\n", "\n", "a", '"a"', ',"b\n",', '"c""d"']), max_size=14
    ),
    st.integers(1, 6),
)
def test_csv_quotes_are_accepted_as_in_rfc_4180_for_any_block_size(
    parts: list[str], block: int
) -> None:
    data = "".join(parts)
    field = r'(?:"(?:[^"]|"")*"|[^",\n]*)'
    rightly = re.fullmatch(rf"(?:{field}[,\n])*{field}", data) is not None
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(lines, "BLOCK_BYTES", block)
        assert accepted(data.encode()) is rightly
        sent = pieces(io.BytesIO(data.encode()), CsvRecords(",").end, block)
        assert all(accepted(piece) for piece in sent) is rightly


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_csv_pieces_keep_empty_lines_and_count_them(tmp_path: Path, size: int) -> None:
    path, data = tmp_path / "t.csv", b'\n\na\n\n"b\n\n"\n\n'
    path.write_bytes(b"s\n" + data)
    found = list(LoadFile(path, form_of(path), size).pieces())
    bodies = [body for piece in found if isinstance(body := piece.body(), bytes)]
    assert b"".join(bodies) == data
    before = [b"".join(bodies[:at]) for at in range(len(bodies))]
    first = [str(2 + each.count(b"\n")) for each in before]
    assert [piece.query["first_line"] for piece in found] == first


_CELLS = st.text(st.sampled_from('ab",\n\r '), max_size=6)


@given(st.lists(st.tuples(_CELLS, _CELLS), min_size=1, max_size=40), st.integers(7, 40))
def test_csv_that_a_writer_wrote_is_read_for_any_block_size(
    records: list[tuple[str, str]], block: int
) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(records)
    whole, cut = text.getvalue().encode(), Records(",").cut
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(lines, "BLOCK_BYTES", block)
        found = list(blocks(io.BytesIO(whole), cut))
        assert b"".join(found) == whole
        form = Form(CSV, columns="a,b")
        read_rows = rows(whole, form, [Column("a", "string"), Column("b", "string")])
    assert [(row["a"], row["b"]) for row in read_rows] == records


@given(st.lists(st.sampled_from(['"', '""', ",", "\n", "\r", "a", '"a"', ',"b\n",']), max_size=30))
def test_csv_is_cut_at_the_same_place_by_counting_quotes_and_by_reading_fields(
    parts: list[str],
) -> None:
    data, records = "".join(parts).encode(), Records(",")
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(Records, "well_quoted", lambda *_: False)
        by_reading = records.cut(data)
    assert records.cut(data) == by_reading


@pytest.mark.parametrize(
    ("data", "rightly"),
    [
        (b'a,"b"\n"c""","d"\n', True),
        (b'a,5" pipe,"b"\n', False),
        (b'"a"b"\n', False),
        (b'"open\n', True),
    ],
)
def test_csv_quotes_are_valid_only_at_the_begin_and_end_of_fields(
    data: bytes, rightly: bool
) -> None:
    assert Records(",").well_quoted(data) is rightly


def test_byte_order_mark_is_left_to_the_server_unless_it_is_before_a_header(
    tmp_path: Path,
) -> None:
    for text in (b"{}\n{}", BOM + b'"x\n",1\n'):
        found = list(pieces(io.BytesIO(BOM + text), CsvRecords(",").end, 3))
        assert found[0].startswith(BOM) and b"".join(found) == BOM + text
    path = tmp_path / "marked.csv"
    path.write_bytes(BOM + b'"*"\n' + BOM + b"x\n")
    (piece,) = LoadFile(path, form_of(path)).pieces()
    assert (piece.query["columns"], piece.query["first_line"]) == ('"*"', "2")
    assert piece.body() == BOM + b"x\n"
    (piece,) = LoadFile(path, form_of(path, columns="a")).pieces()
    assert piece.query["first_line"] == "1" and piece.body() == path.read_bytes()
