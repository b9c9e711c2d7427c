"""The forms of a request's rows, and the error of rows that cannot be used."""

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
"""The most problems that are shown, the rest is counted: a schema may have a million columns."""
REASON_CHARS_MAX: Final = 200
"""The most characters that are shown of a reader's message."""
_NOT_KNOWN: Final = "valid or not, Arrow cannot read it"
TABLES_OWN: Final = "*"
"""The value of ``columns`` for the columns of the table, in its order."""


class RowsError(ValueError):
    """The bytes are no rows that could be appended; ``problems`` has the reasons."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - PROBLEMS_MAX
        shown = [*problems[:PROBLEMS_MAX], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("; ".join(shown))
        self.problems = tuple(problems)


@contextmanager
def clients_fault(problem: str) -> Iterator[None]:
    """Turn the errors of a reader of a client's bytes into RowsError.

    Readers raise any error for unexpected bytes, so there is no list of these errors. A form that
    Arrow has not implemented is reported as that, not as ``problem``: it may be valid. RowsError
    and RequestError pass unchanged, and so does MemoryError of Python; Arrow's own MemoryError is
    about a wrong length in the bytes.
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
    """A file, as Arrow reads it."""

    @property
    def closed(self) -> bool:
        """True if it cannot be read any more."""
        ...

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, fewer only at the end."""
        ...

    def seek(self, offset: int, /) -> int:
        """Set the next position, and return it."""
        ...


class FormKind(StrEnum):
    """A body's media type."""

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
    """The facts needed to read a body.

    ``columns``: the names of the body's columns in order, as a line of CSV, or ``*``; None: the
    body names them. ``delimiter`` and ``null`` (the text for NULL) are CSV's. ``time_zone``: the
    zone of texts for a TIMESTAMP, which must not name one then. ``first_line``: the number of the
    body's first line in its file, for messages; a byte order mark is removed only before line 1.
    """

    kind: FormKind = FormKind.ARROW
    columns: str | None = None
    delimiter: str = ","
    null: str = ""
    time_zone: str | None = None
    first_line: int = 1

    def names(self, own: Sequence[str]) -> list[str] | None:
        """Return the request's column names, for ``*`` the table's (``own``); None: it has none."""
        if self.columns is None:
            return None
        return list(own) if self.columns == TABLES_OWN else names_of(self.columns)

    def fields(self) -> dict[str, Any]:
        """Return the fields for the request's fingerprint; none for a plain Arrow stream."""
        given = {
            "form": self.kind.value,
            "columns": self.columns,
            "delimiter": self.delimiter,
            "null": self.null,
            "time_zone": self.time_zone,
        }
        return {} if replace(self, first_line=1) == ARROW else given


ARROW: Final = Form()
"""An Arrow stream with column names of its own."""


def names_of(line: str, delimiter: str = ",") -> list[str]:
    """Return the fields of one record of CSV; raises RowsError."""
    try:
        records = list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise RowsError([f"the columns' names are not a line of CSV: {error}"]) from error
    return records[0] if records else []
