"""What `haclient` prints: results as tables, CSV or JSON, errors, and lines on the terminal.

A result of one text with line breaks, such as a plan, is shown as that text. A table that is wider
than the terminal is shown row by row, a line for each column (vertical).
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from itertools import islice
from time import monotonic
from types import TracebackType
from typing import Any, Final, Protocol, TextIO, TypeAlias
from unicodedata import category, east_asian_width

import pyarrow as pa

from haclient.columns import Column
from haclient.exceptions import Error, FailureKind, InterfaceError, Outcome
from haclient.type_objects import NUMBER

# Foreign text on a terminal, such as a job's output.


_ACTING: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that control a terminal instead of being shown; `haproc.cli.output` has the same."""


def harmless(line: str) -> str:
    """Return a line with its control characters as escapes, which do nothing on a terminal."""
    shown = _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
    return shown.replace("\n", "\\n")


# What commands share: a function that shows a line to the user, and exit codes.


Report: TypeAlias = Callable[[str], None]
EXIT_REJECTED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_UNKNOWN, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


def exit_code(error: Error) -> int:
    """Return the exit code of the command after this error."""
    if isinstance(error, InterfaceError):
        return EXIT_USAGE
    if error.kind is not FailureKind.AVAILABILITY:
        return EXIT_UNKNOWN if error.outcome is Outcome.UNKNOWN else EXIT_REJECTED
    return EXIT_UNKNOWN if error.outcome is Outcome.UNKNOWN else EXIT_UNAVAILABLE


# The output of `haclient sql`: tables for people, CSV and JSON for programs.


FORMATS = ("table", "vertical", "csv", "json", "jsonl")
ROW_RULE = 40
"""The length of the line above each row in the vertical form. Chosen."""
FOR_PEOPLE = frozenset({"table", "vertical"})
Row = tuple[Any, ...]


class Finished(Protocol):
    """What is needed of a PEP 249 cursor to show its result."""

    @property
    def description(self) -> list[Column] | None: ...
    @property
    def ha(self) -> dict[str, Any]: ...
    @property
    def request_id(self) -> str: ...
    @property
    def rowcount(self) -> int: ...
    def __iter__(self) -> Iterator[Row]: ...


def write_result(
    cursor: Finished, form: str, out: TextIO, rows_max: int | None, columns_max: int | None = None
) -> int:
    """Write a statement's result; return the number of rows that were shown.

    ``columns_max``: the terminal's width; a wider table becomes vertical. None: any width.
    """
    names = [column.name for column in cursor.description or ()]
    rows: Iterable[Row] = iter(cursor) if names else ()
    if rows_max is not None:
        rows = islice(rows, rows_max)
    if form == "json":
        return _write_json(cursor, names, list(rows), out)
    if not names:
        return 0
    if form == "csv":
        return _write_csv(names, rows, out)
    if form == "jsonl":
        return _write_json_lines(names, rows, out)
    return _write_for_people(cursor.description or [], list(rows), out, form, columns_max)


def _write_json(cursor: Finished, names: list[str], rows: list[Row], out: TextIO) -> int:
    document = {
        "request_id": cursor.request_id,
        "columns": [{"name": c.name, "type": c.type_code} for c in cursor.description or ()],
        "rows": [[_json_value(value) for value in row] for row in rows],
        "affected_rows": cursor.rowcount if cursor.rowcount >= 0 else None,
        "ha": cursor.ha,
    }
    out.write(json.dumps(document, ensure_ascii=False) + "\n")
    return len(rows)


def _write_json_lines(names: list[str], rows: Iterable[Row], out: TextIO) -> int:
    count = 0
    for row in rows:
        values = {n: _json_value(v) for n, v in zip(names, row, strict=True)}
        out.write(json.dumps(values, ensure_ascii=False) + "\n")
        count += 1
    return count


def _write_csv(names: list[str], rows: Iterable[Row], out: TextIO) -> int:
    """Write CSV (RFC 4180) that the ring can load: an empty field is NULL, ``""`` an empty text.

    Returns the number of rows.
    """
    out.write(",".join(map(_csv_field, names)) + "\n")
    count = 0
    for row in rows:
        fields = ("" if value is None else _csv_field(text(value)) for value in row)
        out.write(",".join(fields) + "\n")
        count += 1
    return count


def _csv_field(value: str) -> str:
    quoted = not value or any(c in value for c in ',"\r\n')
    return '"' + value.replace('"', '""') + '"' if quoted else value


def _write_for_people(
    columns: Sequence[Column], rows: list[Row], out: TextIO, form: str, columns_max: int | None
) -> int:
    """Write rows as a table or vertically; return their number.

    Only plain characters are used, so that the result looks the same in a pipe.
    """
    titles = [_one_line(column.name) for column in columns]
    if len(rows) == len(titles) == 1 and isinstance(value := rows[0][0], str) and "\n" in value:
        out.writelines(_one_line(line) + "\n" for line in value.rstrip("\n").split("\n"))
        return 1
    if form == "table":
        cells = [[_cell(each) for each in row] for row in rows]
        widths = [max(map(_width, column)) for column in zip(titles, *cells, strict=True)]
        drawn = sum(widths) + 3 * len(widths) - 1
        if columns_max is None or drawn <= columns_max or not rows:
            right = [column.type_code == NUMBER for column in columns]
            _write_table(titles, cells, widths, right, out)
            return len(rows)
    _write_vertical(titles, rows, out)
    return len(rows)


def _write_table(
    titles: list[str], cells: list[list[str]], widths: list[int], right: list[bool], out: TextIO
) -> None:
    rule = "+".join("-" * (width + 2) for width in widths)

    def line(values: Sequence[str]) -> str:
        padded = (
            " " * (width - _width(value)) + value
            if to_right
            else value + " " * (width - _width(value))
            for value, width, to_right in zip(values, widths, right, strict=True)
        )
        return "|".join(f" {value} " for value in padded).rstrip() + "\n"

    out.write(line(titles) + rule + "\n")
    out.writelines(line(row) for row in cells)


def write_rows(titles: Sequence[str], rows: Sequence[Sequence[object]], out: TextIO) -> None:
    """Write any values as a table of texts; None is shown as ``-``."""
    cells = [["-" if each is None else _one_line(str(each)) for each in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(titles, *cells, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(titles))
    ]
    _write_table([*titles], cells, widths, right, out)


def _write_vertical(titles: list[str], rows: list[Row], out: TextIO) -> None:
    """Write each row as a line per column; further lines of a value stand below its first."""
    width = max(map(_width, titles))
    for number, row in enumerate(rows, start=1):
        out.write(f"-[ row {number} ]".ljust(ROW_RULE, "-") + "\n")
        for title, value in zip(titles, row, strict=True):
            shown = "NULL" if value is None else text(value)
            head = title + " " * (width - _width(title))
            for line in shown.split("\n"):
                out.write(f"{head} | {_one_line(line)}".rstrip() + "\n")
                head = " " * width


def _cell(value: Any) -> str:
    return "NULL" if value is None else _one_line(text(value))


def _one_line(value: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)


def _width(value: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if value.isascii():
        return len(value)
    return sum(
        0 if category(c) in ("Mn", "Me") else 2 if east_asian_width(c) in "WF" else 1 for c in value
    )


def rows_of_screen(shown: str, columns: int) -> int:
    """Return how many lines a text takes on a terminal with ``columns`` columns."""
    return sum(max(1, -(-_width(line) // max(1, columns))) for line in shown.splitlines())


def text(value: Any) -> str:
    """Return a value as text, for tables and CSV."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, pa.MonthDayNano):
        return _interval(*value)
    if isinstance(value, list | dict):
        return json.dumps(_json_value(value), ensure_ascii=False)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as Spark writes it: ``1 years 2 months 3 days 4 seconds``."""
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    parts = [(years, "years"), (months, "months"), (days, "days")]
    parts_shown = [f"{number} {unit}" for number, unit in parts if number]
    if nanoseconds or not parts_shown:
        parts_shown.append(f"{nanoseconds / 1e9:.9f}".rstrip("0").rstrip(".") + " seconds")
    return " ".join(parts_shown)


def _json_value(value: Any) -> Any:
    """Return a value as JSON can hold it; what JSON has no type for becomes text."""
    if isinstance(value, dict):
        return {text(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else text(value)


def describe_error(error: Error) -> dict[str, Any]:
    """Return an error's facts as a JSON object."""
    return {
        "message": error.message,
        "error_class": error.error_class,
        "sqlstate": error.sqlstate,
        "kind": error.kind.value,
        "outcome": error.outcome.value,
        "hint": error.hint,
        "cluster": error.cluster,
        "request_id": error.request_id,
    }


def write_error(error: Error, form: str, out: TextIO, *, full: bool = True) -> None:
    """Write an error: as JSON if the results are JSON, else as text.

    ``full``: with all lines of its message. Spark's messages may contain a plan, or a stack trace.
    """
    described = describe_error(error)
    if form in ("json", "jsonl"):
        out.write(json.dumps({"error": described}, ensure_ascii=False) + "\n")
    else:
        out.write(_error_lines(error, described, full))


def _error_lines(error: Error, described: dict[str, Any], full: bool) -> str:
    first, *more = map(harmless, error.message.strip().split("\n"))
    lines = [f"error: {first}", *(more if full else ())]
    labels = {"class": "error_class", "SQLSTATE": "sqlstate", "kind": "kind", "outcome": "outcome"}
    facts = [f"{label} {described[name]}" for label, name in labels.items() if described[name]]
    facts += [f"request {error.request_id}"] if error.request_id else []
    lines.append(f"  {' · '.join(facts)}")
    if error.hint:
        lines.append(f"  hint: {harmless(error.hint)}")
    if more and not full:
        lines.append("  The error has more lines: \\errors full, or --errors full, shows them.")
    return "\n".join(lines) + "\n"


# The terminal of `haclient`: a line that is written again and again, a spinner, the pager.
#
# It shows nothing if the output is no terminal (a pipe, a file), or with ``--quiet``.


PAGER: Final = "less -FRX"
"""The pager for long results if $PAGER is not set, and less is installed."""
SPINS_AFTER_S: Final = 0.5
"""A statement that takes longer than this shows a spinner. Chosen."""
_SPIN_S: Final = 0.1
_SPINNER: Final = "|/-\\"


class Line:
    """A line on the terminal whose text is replaced again and again."""

    def __init__(self, out: TextIO, shown: bool) -> None:
        self._out = out
        self._shown = shown
        self._width = 0

    def write(self, text: str) -> None:
        """Replace the line's text."""
        if self._shown:
            self._out.write("\r" + text.ljust(self._width))
            self._out.flush()
            self._width = max(self._width, len(text))

    def end(self) -> None:
        """Remove the line from the terminal."""
        if self._width:
            self.write("")
            self._out.write("\r")
            self._out.flush()
            self._width = 0


class Waiting:
    """Shows on a terminal for how long a statement has been running; use it with ``with``.

    Other lines for the same terminal go through `print_line`, so that they do not mix.
    """

    def __init__(self, out: TextIO, shown: bool, now: Callable[[], float] = monotonic) -> None:
        self._out = out
        self._shown = shown
        self._now = now
        self._line = Line(out, shown)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._spinner: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if self._shown:
            self._spinner = threading.Thread(target=self._spin, args=(self._now(),), daemon=True)
            self._spinner.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._spinner is not None:
            self._spinner.join()

    def print_line(self, text: str) -> None:
        """Write another line on the terminal, above the spinner."""
        with self._lock:
            self._line.end()
            print(text, file=self._out, flush=True)

    def _spin(self, began: float) -> None:
        turn, ended = 0, self._ended.wait(SPINS_AFTER_S)
        while not ended:
            with self._lock:
                sign = _SPINNER[turn % len(_SPINNER)]
                self._line.write(f"{sign} {self._now() - began:.1f} s (Ctrl-C cancels)")
            turn += 1
            ended = self._ended.wait(_SPIN_S)
        with self._lock:
            self._line.end()


def pager_of(environment: Mapping[str, str]) -> list[str]:
    """Return the pager's command: $PAGER, or else less; empty if it is not installed.

    An empty $PAGER switches the pager off.
    """
    command = shlex.split(environment.get("PAGER", PAGER))
    return command if command and shutil.which(command[0]) else []


def show(text: str, out: TextIO) -> None:
    """Write a text; on a terminal, a text longer than the screen goes through the pager."""
    size = shutil.get_terminal_size()
    if out.isatty() and rows_of_screen(text, size.columns) >= size.lines:
        command = pager_of(os.environ)
        if command and _paged(text, command):
            return
    out.write(text)
    out.flush()


def _paged(text: str, command: list[str]) -> bool:
    """Show a text in the pager until the user quits it; return False if the pager can't start."""
    with _ctrl_c_left_to_pager():
        try:
            # The user may end it before all is written, which is no error.
            subprocess.run(command, input=text, text=True, check=False)
        except OSError as error:
            print(f"haclient: the pager {command[0]}: {error.strerror}", file=sys.stderr)
            return False
    return True


@contextmanager
def _ctrl_c_left_to_pager() -> Iterator[None]:
    """While the block runs, ignore Ctrl-C here: it is meant for the pager."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
