"""The formats in which a request may send rows, and the error of rows that cannot be used."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Protocol

import pyarrow as pa

from haproc.failure import RequestError

PROBLEMS_MAX: Final = 20
"""The most problems that an error shows; the rest is counted, as a schema may have a million
columns."""
REASON_CHARS_MAX: Final = 200
"""The most characters of a reader's message that an error shows."""
_NOT_KNOWN: Final = "valid or not, Arrow cannot read it"
TABLES_OWN: Final = "*"
"""The value of ``columns`` in a request that stands for the table's columns in their order."""


class RowsError(ValueError):
    """The bytes cannot be read as rows to append; ``problems``: the reasons, as texts."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - PROBLEMS_MAX
        shown = [*problems[:PROBLEMS_MAX], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("; ".join(shown))
        self.problems = tuple(problems)


@contextmanager
def clients_fault(problem: str) -> Iterator[None]:
    """Turn errors raised while a client's bytes are read into RowsError, with ``problem``.

    Readers raise any error for unexpected bytes, so there is no list of these errors. If Arrow has
    not implemented a form, the error says that instead of ``problem``: the bytes may be valid.
    RowsError and RequestError pass unchanged, and so does MemoryError of Python; Arrow's own
    MemoryError is about a wrong length in the bytes.
    """
    try:
        yield
    except (RowsError, RequestError):
        raise
    except Exception as error:
        if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):
            raise
        reason = str(error)[:REASON_CHARS_MAX] or type(error).__name__
        known = not isinstance(error, pa.ArrowNotImplementedError)
        raise RowsError([f"{problem if known else _NOT_KNOWN}: {reason}"]) from error


class Readable(Protocol):
    """A file with the methods that Arrow calls."""

    @property
    def closed(self) -> bool:
        """True if the file is closed and cannot be read any more."""
        ...

    def read(self, size: int = -1, /) -> bytes:
        """Return the next ``size`` bytes, fewer only at the file's end."""
        ...

    def seek(self, offset: int, /) -> int:
        """Set the position of the next read, and return it."""
        ...


class FormKind(StrEnum):
    """The format of a body of rows, by its media type."""

    ARROW = "application/vnd.apache.arrow.stream"
    CSV = "text/csv"
    JSON_LINES = "application/x-ndjson"
    PARQUET = "application/vnd.apache.parquet"


NOT_OF_FORM: Final = {
    FormKind.ARROW: "not an Arrow IPC stream",
    FormKind.CSV: "not CSV",
    FormKind.JSON_LINES: "not JSON lines",
    FormKind.PARQUET: "not a Parquet file",
}


@dataclass(frozen=True, slots=True)
class Form:
    """How to read a body of rows.

    ``columns``: the names of the body's columns in order, as a line of CSV, or ``*`` for the
    table's; None: the body names them. ``delimiter`` and ``null`` (the text that means NULL) are
    for CSV. ``time_zone``: the zone of texts for a TIMESTAMP, which must not name one then.
    ``first_line``: the number of the body's first line in its file, for messages; a byte order mark
    is removed only before line 1.
    """

    kind: FormKind = FormKind.ARROW
    columns: str | None = None
    delimiter: str = ","
    null: str = ""
    time_zone: str | None = None
    first_line: int = 1

    def names(self, own: Sequence[str]) -> list[str] | None:
        """Return the column names that the request gives; None if the body names its columns.

        ``own``: the names of the table's columns, which ``*`` stands for.
        """
        if self.columns is None:
            return None
        return list(own) if self.columns == TABLES_OWN else names_of(self.columns)

    def fields(self) -> dict[str, Any]:
        """Return what of the form belongs in the request's fingerprint; empty for plain Arrow."""
        given = {
            "form": self.kind.value,
            "columns": self.columns,
            "delimiter": self.delimiter,
            "null": self.null,
            "time_zone": self.time_zone,
        }
        return {} if replace(self, first_line=1) == ARROW else given


ARROW: Final = Form()
"""The form of an Arrow stream that names its columns itself."""


def names_of(line: str, delimiter: str = ",") -> list[str]:
    """Return the fields of ``line``, one record of CSV, such as column names; raises RowsError."""
    try:
        records = list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise RowsError([f"the columns' names are not a line of CSV: {error}"]) from error
    return records[0] if records else []
