"""The output of `haclient sql`: tables for people, CSV and JSON for programs."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from itertools import islice
from typing import Any, Protocol, TextIO

import pyarrow as pa

from haclient.columns import Column
from haclient.exceptions import Error
from haclient.type_objects import NUMBER

FORMATS = ("table", "csv", "json", "jsonl")
Row = tuple[Any, ...]


class Finished(Protocol):
    """A cursor after execute, as much as is shown of it."""

    @property
    def description(self) -> list[Column] | None: ...
    @property
    def ha(self) -> dict[str, Any]: ...
    @property
    def request_id(self) -> str: ...
    @property
    def rowcount(self) -> int: ...
    def __iter__(self) -> Iterator[Row]: ...


def write_result(cursor: Finished, form: str, out: TextIO, rows_max: int | None) -> int:
    """Write a statement's result; return how many rows it had (or were shown of it)."""
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
    return _write_table(cursor.description or [], list(rows), out)


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
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    count = 0
    for row in rows:
        writer.writerow(["" if value is None else text(value) for value in row])
        count += 1
    return count


def _write_table(columns: Sequence[Column], rows: list[Row], out: TextIO) -> int:
    """Draw a table; plain characters, so that it reads the same in a pipe."""
    cells = [["NULL" if value is None else _one_line(text(value)) for value in row] for row in rows]
    titles = [_one_line(column.name) for column in columns]
    right = [column.type_code == NUMBER for column in columns]
    widths = [max(map(_width, column)) for column in zip(titles, *cells, strict=True)]
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
    return len(rows)


def _one_line(value: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)


def _width(value: str) -> int:
    if value.isascii():
        return len(value)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in value)


def text(value: Any) -> str:
    """Return a value as people and CSV readers expect it."""
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
    """Return a value as JSON has it; what JSON lacks becomes text."""
    if isinstance(value, dict):
        return {text(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else text(value)


def describe_error(error: Error) -> dict[str, Any]:
    """Return an error as a JSON document."""
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


def write_error(error: Error, form: str, out: TextIO) -> None:
    """Write an error, as JSON where the results are."""
    text = describe_error(error)
    if form in ("json", "jsonl"):
        out.write(json.dumps({"error": text}, ensure_ascii=False) + "\n")
        return
    out.write(f"error: {error.message}\n")
    labels = {"class": "error_class", "SQLSTATE": "sqlstate", "kind": "kind", "outcome": "outcome"}
    facts = [f"{label} {text[name]}" for label, name in labels.items() if text[name]]
    facts += [f"request {error.request_id}"] if error.request_id else []
    out.write(f"  {' · '.join(facts)}\n")
    if error.hint:
        out.write(f"  hint: {error.hint}\n")
