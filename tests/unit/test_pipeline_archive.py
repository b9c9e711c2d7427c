"""Tests of the archive program: what it writes, with any interruption."""

from __future__ import annotations

from email.message import Message
from typing import Any

import pyarrow as pa
import pytest

from haproc.engine.arrow import stream_of
from haproc.pipeline.archive import PASSED_MAX, Operations, archive
from haproc.pipeline.ring import HttpAnswer, token_in
from haproc.replicate.archive.columns import SCHEMA


class Killed(Exception):
    """Ends the program here."""


class Table(Operations):
    """The table, in memory. ``dies``: the number of the merge after which the program is killed."""

    def __init__(self) -> None:
        super().__init__(None)
        self.offsets: list[int] = []
        self.kinds: list[str] = []
        self.merges = 0
        self.dies: int | None = None

    def position(self) -> int:
        return max(self.offsets, default=-1) + 1

    def merge(self, rows: Any) -> None:
        self.merges += 1
        for row in rows.to_pylist():
            if row["offset"] not in self.offsets:
                self.offsets.append(row["offset"])
                self.kinds.append(row["kind"])
        if self.merges == self.dies:
            raise Killed


class Log:
    """Client doors of a ring whose log has operations at these offsets."""

    def __init__(self, *operations: int, end: int, start: int = 0) -> None:
        self.operations = operations
        self.end = end
        self.start = start
        self.archived: list[int] = []

    def ask(self, path: str, body: Any = None) -> HttpAnswer:
        headers = Message()
        if body is not None:
            self.archived.append(body["below"])
            return HttpAnswer(b"{}", headers)  # type: ignore[arg-type]
        requested, rows = (
            int(part.partition("=")[2]) for part in path.partition("?")[2].split("&")
        )
        start = max(requested, self.start)
        found = [offset for offset in self.operations if offset >= start]
        end = found[rows] if len(found) > rows else self.end
        operation_rows = [{"offset": offset, "kind": "insert"} for offset in found[:rows]]
        headers["HAProc-Operations-Start"] = str(start)
        headers["HAProc-Operations-End"] = str(max(end, start))
        headers["HAProc-Applied-To"] = str(self.end)
        return HttpAnswer(stream_of(pa.Table.from_pylist(operation_rows, schema=SCHEMA)), headers)  # type: ignore[arg-type]


def test_archive_has_each_operation_once_after_a_kill_at_any_merge() -> None:
    operations = (0, 1, 4, 5, 9, 10, 11)
    for dies in range(1, 6):
        table, log = Table(), Log(*operations, end=14)
        table.dies = dies
        try:
            archive(table, log, 2)
        except Killed:
            assert not log.archived or log.archived[-1] <= table.position()
        archive(table, log, 2)
        assert table.offsets == [*operations]
        assert log.archived[-1] == 14
        assert archive(table, log, 2) == 0


def test_archive_of_an_idle_ring_writes_nothing() -> None:
    table, log = Table(), Log(0, end=PASSED_MAX)
    assert archive(table, log) == 1
    merges = table.merges
    archive(table, log)
    assert table.merges == merges


def test_archive_that_passes_over_many_records_stores_its_position_once() -> None:
    table, log = Table(), Log(0, end=3 * PASSED_MAX)
    archive(table, log)
    archive(table, log)
    archive(table, log)
    assert list(zip(table.offsets, table.kinds, strict=True)) == [
        (0, "insert"),
        (3 * PASSED_MAX - 1, "position"),
    ]


def test_archive_of_a_trimmed_log_reports_the_missing_offsets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table, log = Table(), Log(0, 1, 8, end=9)
    archive(table, Log(0, 1, end=2))
    log.start = 5
    archive(table, log)
    assert table.offsets == [0, 1, 8]
    assert "offsets 2 to 4 are not in the log any more" in capsys.readouterr().out


def test_token_of_a_job_is_read_from_its_spark_url() -> None:
    assert token_in("sc://localhost:15002/;use_ssl=true;token=a%2Bb;user_id=x") == "a+b"
    assert token_in("sc://localhost:15002") == ""
