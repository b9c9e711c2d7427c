"""Tests of JSON lines: values inside lists, maps and structs are read like those of columns."""

from __future__ import annotations

import pytest

from haproc.engine.interface import Column
from haproc.route.rows.forms import Form
from tests.unit.test_rows_forms import JSON, refusal


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("double", b"1e400", "out of range"),
        ("double", b"9007199254740993", "9007199254740993"),
        ("timestamp", b'"2026-10-25T02:30:00"', "ambiguous"),
        ("date", b'"2026-W01-1"', "2026-W01-1"),
    ],
)
@pytest.mark.parametrize(
    ("within", "around"),
    [("%s", b"%s"), ("array<%s>", b"[null,%s]"), ("map<string,%s>", b'{"k":%s}'),
     ("struct<a:%s>", b'{"a":%s}')],
)  # fmt: skip
def test_invalid_json_value_is_refused_at_any_nesting(
    kind: str, value: bytes, reason: str, within: str, around: bytes
) -> None:
    columns, form = [Column("v", within % kind)], Form(JSON, time_zone="Europe/Zurich")
    assert reason in refusal(b'{"v":' + around % value + b"}\n", form, columns)
