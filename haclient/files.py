"""A file to load: its format, where its records end, and the pieces in which it is sent."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from io import SEEK_END
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from haclient.arrow import Rows
from haclient.exceptions import DataError, InterfaceError
from haclient.protocol import Body, columns_text

# The ends of records in a text file, so that it can be cut between two of them.


RECORD_BYTES_MAX: Final = 4 << 20
"""The largest record (line) that a server accepts."""
BOM: Final = b"\xef\xbb\xbf"

Cut = Callable[[bytes], int]
"""A function that returns where the last whole record in some bytes ends; 0 if there is none."""


class Readable(Protocol):
    """An open file, as far as it is read here."""

    def read(self, size: int, /) -> bytes:
        """Return the next ``size`` bytes; empty at the end of the file."""
        ...


def line_end(data: bytes) -> int:
    """Return the position behind the last line break; 0 if there is none."""
    return data.rfind(b"\n") + 1


class CsvRecords:
    """Finds where CSV records end; a line break inside a quoted field ends no record."""

    def __init__(self, delimiter: str) -> None:
        within = rb"[^\r\n" + re.escape(delimiter.encode()) + rb"]"
        # Atomic groups, because Python before 3.11.5 has a bug in possessive ones.
        quoted = rb'"(?>[^"]*(?:""[^"]*)*)"'
        field = rb'[^"\n]++|(?<!' + within + rb")" + quoted + rb"|(?<=" + within + rb')"'
        self._first = re.compile(rb"(?>(?:" + field + rb")*)\n")
        self._all = re.compile(rb"(?>(?:(?>(?:" + field + rb")*)\n)*)")

    def end(self, data: bytes) -> int:
        """Return the position behind the last whole record; 0 if there is none."""
        if b'"' not in data:
            return line_end(data)
        found = self._all.match(data)
        return found.end() if found is not None else 0

    def first(self, data: bytes) -> bytes:
        """Return the first record with its line break; all bytes if no record ends."""
        found = self._first.match(data)
        return found.group() if found is not None else data


def pieces(source: Readable, cut: Cut, piece_bytes: int) -> Iterator[bytes]:
    """Cut a text file between records into pieces of about ``piece_bytes``, always the same.

    Raises DataError for a record that is too long. A byte order mark stays before the first piece;
    the server removes it.
    """
    rest = source.read(piece_bytes)
    mark = BOM if rest.startswith(BOM) else b""
    rest = rest[len(mark) :]
    while True:
        if end := cut(rest):
            yield mark + rest[:end]
            rest, mark = rest[end:], b""
        elif len(rest) > piece_bytes + RECORD_BYTES_MAX:
            raise DataError("a record is too long, or a quote is not closed")
        data = source.read(max(piece_bytes - len(rest), piece_bytes // 4 + 1))
        if not data:
            break
        rest += data
    if mark or rest:
        yield mark + rest


# A file to load: its form, and the pieces in which it is sent, the same each time.
#
# Text files are cut between two records and sent unchanged, because the server knows the columns'
# types; Parquet and Arrow files are read here, and sent as Arrow.


PIECE_BYTES: Final = 12 << 20
"""The usual size of a piece.

Three or four pieces make one statement of a cluster (`limits.batch_arrow_bytes_max`). Measured:
smaller ones cost more, larger ones more memory.
"""
_READ_BYTES: Final = 1 << 20
_CONTINUES: Final = b"\xff\xff\xff\xff"
_ENDS: Final = _CONTINUES + bytes(4)
"""The last bytes of a complete Arrow stream; each of its messages begins with `_CONTINUES`."""


class FileKind(StrEnum):
    """The format of a file; CSV and JSON may be packed with gzip."""

    CSV = "csv"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


_SUFFIXES: Final = {
    ".csv": FileKind.CSV,
    ".tsv": FileKind.CSV,
    ".jsonl": FileKind.JSON_LINES,
    ".ndjson": FileKind.JSON_LINES,
    ".parquet": FileKind.PARQUET,
    ".arrow": FileKind.ARROW,
    ".arrows": FileKind.ARROW,
    ".feather": FileKind.ARROW,
}
MEDIA_TYPES: Final = {
    FileKind.CSV: "text/csv",
    FileKind.JSON_LINES: "application/x-ndjson",
    FileKind.PARQUET: "application/vnd.apache.arrow.stream",
    FileKind.ARROW: "application/vnd.apache.arrow.stream",
}
_OPTIONS: Final = {
    FileKind.CSV: {"columns", "delimiter", "null", "time_zone"},
    FileKind.JSON_LINES: {"columns", "time_zone"},
    FileKind.PARQUET: {"columns"},
    FileKind.ARROW: {"columns"},
}


@dataclass(frozen=True, slots=True)
class FileForm:
    """How to read a file: its format, and parameters of the server's HTTP API for rows."""

    kind: FileKind
    columns: str | None = None
    delimiter: str | None = None
    null: str | None = None
    time_zone: str | None = None

    def query(self) -> dict[str, str]:
        """Return the parameters for the request of each piece."""
        options = asdict(self)
        return {
            name: options[name] for name in options if name != "kind" and options[name] is not None
        }


def form_of(path: Path, kind: str | None = None, **options: str | None) -> FileForm:
    """Return how to read a file: by its name, or as ``kind`` says. Raises InterfaceError."""
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    try:
        found = FileKind(kind) if kind else _SUFFIXES[suffix.lower()]
    except (ValueError, KeyError):
        known = ", ".join(FileKind)
        raise InterfaceError(f"say what {path.name} holds: {known}") from None
    given = {name: value for name, value in options.items() if value is not None}
    if wrong := sorted(given.keys() - _OPTIONS[found]):
        raise InterfaceError(f"{wrong[0]} says nothing of {found}")
    if found is FileKind.CSV and suffix.lower() == ".tsv":
        given.setdefault("delimiter", "\t")
    return FileForm(found, **given)


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A part of a file that is sent as one request; ``number`` counts from 0."""

    number: int
    begins: str
    """The number of the piece's first line or row, as text for people."""
    body: Callable[[], Body]
    file_bytes: int
    """How many of the file's bytes the piece covers."""
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """How much of a file the ring has acknowledged.

    - ``bytes``: of the file, which has ``size`` bytes;
    - ``pieces`` with ``rows``; ``skipped``: the pieces that the ring had from an earlier attempt.
    """

    load_id: str
    size: int
    bytes: int = 0
    rows: int = 0
    pieces: int = 0
    skipped: int = 0


class LoadFile:
    """A file to load, with the form in which it is read. Methods raise OSError, DataError."""

    def __init__(self, path: Path, form: FileForm, piece_bytes: int = PIECE_BYTES) -> None:
        if piece_bytes < 1:
            raise InterfaceError("piece_bytes must be at least 1")
        self.path = path
        self.form = form
        self._piece_bytes = piece_bytes
        self._is_texts = form.kind in (FileKind.CSV, FileKind.JSON_LINES)
        self._stood = self._stands()
        self.size = self._stood[0]

    def digest(self, table: str, where: tuple[str | None, str | None] = (None, None)) -> str:
        """Return a digest of the file's bytes, how it is cut, and the table it goes to.

        ``where``: the catalog and schema in which the table's name is looked up.
        """
        cutter = "" if self._is_texts else pa.__version__
        goes = (table, *where, self.form, self._piece_bytes, cutter)
        made = hashlib.sha256(repr(goes).encode())
        with self.path.open("rb") as file:
            made.update(hashlib.file_digest(file, "sha256").digest())
        self._check_unchanged()
        return made.hexdigest()[:16]

    def pieces(self) -> Iterator[FilePiece]:
        """Yield the pieces; an empty file is one piece, so that the table is still checked."""
        with self._explained():
            for piece in self._found():
                self._check_unchanged()
                yield piece

    def schema(self) -> Any:
        """Return the schema of a Parquet or Arrow file."""
        with self._explained(), closing(self._batches()) as batches:
            return next(batches)[0].schema

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """While the block runs, turn errors of reading into DataError.

        Also raises DataError if the file has changed since it was opened.
        """
        try:
            yield
        except pa.ArrowNotImplementedError as error:
            self._check_unchanged()
            raise DataError(f"{self.path.name}: Arrow cannot read it: {error}") from error
        except (pa.ArrowException, zlib.error, gzip.BadGzipFile, EOFError) as error:
            self._check_unchanged()
            raise DataError(f"{self.path.name} is no {self.form.kind}: {error}") from error
        self._check_unchanged()

    def _stands(self) -> tuple[int, int, int]:
        """Return the file's size, time of change and inode: other values mean another content."""
        now = self.path.stat()
        return now.st_size, now.st_mtime_ns, now.st_ino

    def _check_unchanged(self) -> None:
        if self._stands() != self._stood:
            raise DataError(f"{self.path.name} was changed while it was loaded")

    def _found(self) -> Iterator[FilePiece]:
        return self._texts() if self._is_texts else self._tables(self._batches())

    def _batches(self) -> Generator[tuple[Any, float], None, None]:
        if self.form.kind is FileKind.PARQUET:
            return _of_parquet(self.path, self._piece_bytes)
        return _of_arrow(self.path)

    def _texts(self) -> Iterator[FilePiece]:
        query, line, read, is_empty = self.form.query(), 1, 0, True
        records = CsvRecords(query.get("delimiter", ","))
        is_csv = self.form.kind is FileKind.CSV
        with self._opened() as (source, position):
            found = pieces(source, records.end if is_csv else line_end, self._piece_bytes)
            for number, data in enumerate(found):
                if is_csv and "columns" not in query:
                    data = data.removeprefix(BOM)
                    header = records.first(data)
                    query["columns"] = _columns(header, query.get("delimiter", ","))
                    data, line = data[len(header) :], line + header.count(b"\n")
                    if not data:
                        continue
                at = position()
                options = {**query, "first_line": str(line)}
                yield FilePiece(number, f"line {line}", lambda d=data: d, at - read, options)  # type: ignore[misc]
                read, line, is_empty = at, line + data.count(b"\n"), False
        if is_csv and "columns" not in query:
            raise DataError(f"{self.path.name}: the first line is to name the columns")
        if is_empty:
            yield FilePiece(0, f"line {line}", lambda: b"", self.size, query)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Callable[[], int]]]:
        """Yield the file's text, unpacked, and a function that returns the position in the file."""
        with self.path.open("rb") as file:
            if self.path.suffix.lower() != ".gz":
                yield file, file.tell
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked, file.tell

    def _tables(self, batches: Iterator[tuple[Any, float]]) -> Iterator[FilePiece]:
        row, read = 0, 0
        for number, (table, share) in enumerate(_grouped(batches, self._piece_bytes)):
            at = int(share * self.size)
            body = Rows(table).body
            yield FilePiece(number, f"row {row + 1}", body, at - read, self.form.query())
            row, read = row + table.num_rows, at


def _columns(header: bytes, delimiter: str) -> str:
    """Return the column names in a CSV file's first record, as a line of CSV for the server."""
    try:
        names = next(csv.reader([header.decode().rstrip("\r\n")], delimiter=delimiter, strict=True))
    except (csv.Error, UnicodeDecodeError, StopIteration) as error:
        raise DataError(f"the first line is to name the columns: {error}") from error
    if not names:
        raise DataError("the first line is to name the columns, and is empty")
    return columns_text(names)


def _of_parquet(path: Path, piece_bytes: int) -> Generator[tuple[Any, float], None, None]:
    """Yield the file's batches, an empty one first, each with the share of rows read so far."""
    with pq.ParquetFile(path, buffer_size=_READ_BYTES, coerce_int96_timestamp_unit="us") as file:
        schema = _with_moments(file)
        done, total = 0, max(1, file.metadata.num_rows)
        yield _no_rows(schema), 0.0
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            width = max(1, about.total_byte_size // max(1, about.num_rows))
            for batch in file.iter_batches(max(1, piece_bytes // width // 8), row_groups=[group]):
                done += batch.num_rows
                yield batch.cast(schema), done / total


def _with_moments(file: Any) -> Any:
    """Return the schema in which INT96 columns, Spark's old timestamps, have a time zone."""
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    moments = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    fields = [
        each.with_type(pa.timestamp("us", "UTC")) if each.name in moments else each
        for each in file.schema_arrow
    ]
    return pa.schema(fields)


def _of_arrow(path: Path) -> Generator[tuple[Any, float], None, None]:
    """Yield the file's batches, an empty one first, each with about the share of bytes read."""
    with path.open("rb") as file:
        size = max(1, path.stat().st_size)
        for batch in _batches(file):
            yield batch, min(1.0, file.tell() / size)


def _grouped(batches: Iterator[tuple[Any, float]], piece_bytes: int) -> Iterator[tuple[Any, float]]:
    """Join and cut batches into tables of about ``piece_bytes``; the first batch must be empty.

    Yields each table with the share of the file up to its end. Without any rows it yields the empty
    batch.
    """
    empty, _ = next(batches)
    group, size, is_empty = [], 0, True
    for batch, share in batches:
        rows = max(1, batch.num_rows * piece_bytes // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            is_empty = False
            group.append(batch.slice(begin, rows))
            size += group[-1].nbytes
            if size >= piece_bytes:
                yield pa.Table.from_batches(group), share
                group, size = [], 0
    if group or is_empty:
        yield pa.Table.from_batches(group or [empty]), 1.0


def _no_rows(schema: Any) -> Any:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _batches(file: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, or of an Arrow stream in a file.

    First comes a batch without rows, which shows the columns.
    """
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        begins = file.read(len(_CONTINUES))
        file.seek(-min(len(_ENDS), file.seek(0, SEEK_END)), SEEK_END)
        if begins == _CONTINUES and file.read() != _ENDS:
            raise EOFError("it does not end as a stream does, so it may be a part of one") from None
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        yield _no_rows(stream.schema)
        yield from stream
        return
    yield _no_rows(reader.schema)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
