"""Tests of an operation that one cluster cannot apply, and of the operators' commands for it.

The cluster's table has a file where the directory of a partition would be: rows for that partition
can't be written there, which is an environment error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from haproc.cli.main import main
from haproc.engine.connect import SparkConnectEngine
from tests.integration.engine_calls import rows
from tests.rig import Rig

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.logs("sqlite"),
    pytest.mark.early,
    pytest.mark.thorough,
]

STUCK_S = 400.0


@pytest.fixture
def table(rig: Rig) -> Iterator[str]:
    """A partitioned table; after the test the cluster must be in service again."""
    name = f"q{uuid.uuid4().hex[:8]}"
    rig.run(f"CREATE TABLE {name} (id INT, p STRING) USING delta PARTITIONED BY (p)")
    rig.run(f"INSERT INTO {name} VALUES (1, 'good')")
    rig.settled()
    yield name
    assert rig.status("c")["state"] == "READY", "the test left c out of service"


def obstacle(rig: Rig, table: str, partition: str) -> Path:
    """Put a file where the directory of a partition would be on cluster c."""
    (detail,) = rig.run(f"DESCRIBE DETAIL {table}", order="c")
    location = next(str(value) for value in detail if str(value).startswith("file:"))
    file = Path(urlsplit(location).path) / f"p={partition}"
    file.write_text("")
    return file


def stuck(rig: Rig, table: str, partition: str) -> int:
    """Write a row that c cannot write, and a second row; return the offset of the first."""
    with rig.cursor("ab") as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (2, '{partition}')")
        offset = int(cursor.ha["log_offset"])
        rig.wait(lambda: rig.status("c")["state"] == "STUCK", STUCK_S)
        cursor.execute(f"INSERT INTO {table} VALUES (3, 'good')")
    return offset


def haproc(rig: Rig, *words: str) -> int:
    return main([*words, "--folder", str(rig.ring.folder)])


def mend(rig: Rig, sql: str, name: str = "c") -> None:
    """Run a statement directly on a cluster's Spark, past HAProc."""

    async def run() -> None:
        engine = SparkConnectEngine(rig.ring.config.cluster(name).spark, ring="mend", cluster=name)
        async with contextlib.aclosing(engine):
            await rows(engine.session("mend"), sql)

    asyncio.run(run())


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_stuck_operation_is_shown_and_applied_when_its_cause_is_gone(
    rig: Rig, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = obstacle(rig, table, "bad")
    offset = stuck(rig, table, "bad")
    one = ("--cluster", "c", "--offset", str(offset))
    rig.wait(lambda: rig.status("c")["log_end"] > offset + 1, 60)
    capsys.readouterr()
    assert haproc(rig, "queue", "list", "--cluster", "c", "--json") == 0
    page = printed(capsys)
    assert (page["state"], page["cursor"]) == ("STUCK", offset)
    head, behind = page["operations"][:2]
    assert (head["offset"], head["position"], head["head"]) == (offset, "stuck", True)
    assert (behind["position"], behind["blocked_by"]) == ("blocked", offset)
    assert head["error"] and head["writes"] == [f"spark_catalog.default.{table}"]
    assert haproc(rig, "queue", "list", "--cluster", "c") == 0
    assert f"\n>  {offset}" in capsys.readouterr().out
    assert haproc(rig, "queue", "show", *one) == 0
    output = capsys.readouterr().out
    assert f"INSERT INTO {table} VALUES (2, 'bad')" in output
    assert "retry: it is tried at once" in output and "skip: it is never applied here" in output
    # What may not be done, is not done.
    assert haproc(rig, "queue", "skip", *one) == 2
    assert haproc(rig, "queue", "skip", "--cluster", "c", "--offset", "999999", "--yes") == 1
    behind_it = ("--cluster", "c", "--offset", str(behind["offset"]))
    assert haproc(rig, "queue", "skip", *behind_it, "--yes") == 1
    assert haproc(rig, "queue", "skip", "--cluster", "a", "--offset", str(offset), "--yes") == 1
    output = capsys.readouterr().err
    assert "nothing at offset 999999" in output and "waits for the operation that blocks" in output
    assert rig.status("c")["state"] == "STUCK"
    file.unlink()
    assert haproc(rig, "queue", "retry", *one) in (0, 1)  # 1: it went through by itself just now
    assert rig.everywhere(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,)]


def test_cluster_with_a_skipped_operation_is_diverged_until_its_table_is_fixed_and_verified(
    rig: Rig, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = obstacle(rig, table, "worse")
    offset = stuck(rig, table, "worse")
    one = ("--cluster", "c", "--offset", str(offset))
    assert haproc(rig, "queue", "skip", *one, "--reason", "a test", "--yes") == 0
    assert f"offset {offset} is skipped; c is DIVERGED" in capsys.readouterr().out
    # It goes on without the operation, and remembers.
    rig.ring.kill("c", "haproc")
    rig.gone("c")
    rig.start("c", ready=False)
    rig.run(f"INSERT INTO {table} VALUES (4, 'good')", order="ab")
    rig.wait(lambda: rig.status("c")["state"] == "DIVERGED", 120)
    assert f"offset {offset} was skipped here" in rig.status("c")["reason"]
    end = rig.status("a")["log_end"]
    rig.wait(lambda: rig.status("c")["cursor"] >= end, 240)
    assert haproc(rig, "verify", "--json", "--wait-s", "400") == 1
    found = printed(capsys)
    assert found["clusters"]["c"]["finding"] == "different"
    assert {found["clusters"][name]["finding"] for name in "ab"} == {"equal"}
    wrong = {name for name, by in found["tables"].items() if by["c"] != "equal"}
    assert wrong == {f"spark_catalog.default.{table}"}
    rig.wait(lambda: table in rig.status("c")["reason"], 60)
    file.unlink()
    mend(rig, f"INSERT INTO {table} VALUES (2, 'worse')")
    assert haproc(rig, "verify", "--wait-s", "400") == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith("all ")] == [
        ["all", "equal", "equal", "equal"]
    ]
    rig.settled()
    assert rig.everywhere(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,), (4,)]
    rig.check_equal(table)
