"""Rows as lines of text: cut into blocks of whole records, and the record that is to blame found.

A block is decoded at a time, so no more of a body is in memory. Where one cannot be, its records
are halved again and again: a record that cannot be decoded makes every block undecodable that holds
it. So what goes wrong is told with its line, whatever the decoder says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from haproc.route.rows.forms import Readable, RowsError, clients_fault

BLOCK_BYTES: Final = 1 << 20
"""Chosen: records are cut with the interpreter's lock held, for up to 20 ms a block."""
RECORD_BYTES_MAX: Final = 4 << 20
"""Chosen. Longer records come as Arrow or Parquet."""
Batches: TypeAlias = tuple[pa.Schema, Iterator[pa.RecordBatch]]
"""The columns of a body, and its rows."""
BOM: Final = b"\xef\xbb\xbf"


class Lines(Protocol):
    """How one form's records are told apart and decoded."""

    def split(self, block: bytes) -> list[bytes]:
        """Return the records of a block; the last one may lack its end."""
        ...

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the rows of a block; raises RowsError."""
        ...


def blocks(source: Readable, cut: Callable[[bytes], int], first_line: int = 1) -> Iterator[bytes]:
    """Yield a body in blocks of whole records; raises RowsError of the one behind the last.

    ``cut`` returns where the last whole record of some bytes ends, 0 if there is none. A mark of
    the byte order stands at a file's beginning; at that of a later line it is a character.
    """
    rest = source.read(BLOCK_BYTES)
    if first_line == 1:
        rest = rest.removeprefix(BOM)
    while data := source.read(BLOCK_BYTES):
        rest += data
        if end := cut(rest):
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > RECORD_BYTES_MAX:
            raise RowsError([f"a record has more than {RECORD_BYTES_MAX} bytes, or never ends"])
    if rest:
        whole = rest if rest.endswith(b"\n") else rest + b"\n"
        if (end := cut(whole)) < len(whole):
            if end:
                yield rest[:end]  # what is wrong before is told first
            raise RowsError(["the last record never ends: a quote is not closed"])
        yield whole  # with its end: without it Arrow takes an empty last field for one in quotes


def decoded(found: Iterator[bytes], lines: Lines, first_line: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks; raises RowsError that tells the line."""
    at = first_line
    while (block := _next(found, at)) is not None:
        try:
            batch = _decoded(block, lines)
        except RowsError as error:
            raise _located(block, lines, at, error) from error
        yield batch
        at += block.count(b"\n")


def _next(found: Iterator[bytes], at: int) -> bytes | None:
    try:
        return next(found, None)
    except RowsError as error:
        raise _told(error, at) from error


def _told(error: RowsError, at: int) -> RowsError:
    return RowsError([f"line {at}: {problem}" for problem in error.problems])


def _decoded(block: bytes, lines: Lines) -> pa.RecordBatch:
    with clients_fault("not to be read"):
        return lines.decode(block)


def _located(block: bytes, lines: Lines, at: int, error: RowsError) -> RowsError:
    """Return the error of the first record that has one, with its line."""
    records = lines.split(block)
    while len(records) > 1:
        first = records[: len(records) // 2]
        failed = _failure(lines, b"".join(first))
        if failed is None:
            at += sum(record.count(b"\n") for record in first)
            records = records[len(first) :]
        else:
            records, error = first, failed
    return _told(_failure(lines, b"".join(records)) or error, at)


def _failure(lines: Lines, block: bytes) -> RowsError | None:
    try:
        _decoded(block, lines)
    except RowsError as error:
        return error
    return None
