"""Where the records of a text file end, so that it can be cut between two of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from haclient.exceptions import DataError

RECORD_BYTES_MAX: Final = 4 << 20
"""What servers take."""
BOM: Final = b"\xef\xbb\xbf"

Cut = Callable[[bytes], int]
"""Returns where the last whole record of some bytes ends, 0 if there is none."""


class Readable(Protocol):
    """A file."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...


def line_end(data: bytes) -> int:
    """Cut JSON lines."""
    return data.rfind(b"\n") + 1


class CsvRecords:
    """Cuts CSV: in quotes, which begin a field, line ends are text."""

    def __init__(self, delimiter: str) -> None:
        within = rb"[^\r\n" + re.escape(delimiter.encode()) + rb"]"
        # Atomic groups: Python before 3.11.5 gets possessive ones wrong.
        quoted = rb'"(?>[^"]*(?:""[^"]*)*)"'
        field = rb'[^"\n]++|(?<!' + within + rb")" + quoted + rb"|(?<=" + within + rb')"'
        self._first = re.compile(rb"(?>(?:" + field + rb")*)\n")
        self._all = re.compile(rb"(?>(?:(?>(?:" + field + rb")*)\n)*)")

    def end(self, data: bytes) -> int:
        """Return where the last whole record ends, 0 if there is none."""
        if b'"' not in data:
            return line_end(data)
        found = self._all.match(data)
        return found.end() if found is not None else 0

    def first(self, data: bytes) -> bytes:
        """Return the first record with its end; all if none ends."""
        found = self._first.match(data)
        return found.group() if found is not None else data


def pieces(source: Readable, cut: Cut, piece_bytes: int) -> Iterator[bytes]:
    """Yield whole records, about so many bytes at a time; the same each time. Raises DataError.

    A mark of the byte order stays in front of the first one, for the server to leave out.
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
