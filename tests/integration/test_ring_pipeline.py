"""Tests of the pipeline's programs on a real ring, started as users start them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import haclient
from haproc.pipeline.tables import usage
from tests.integration.test_ring_jobs import ended, log, submit
from tests.rig import Rig

pytestmark = [
    pytest.mark.spark,
    pytest.mark.logs("sqlite"),
    pytest.mark.early,
    pytest.mark.thorough,
]

ROOT = Path(__file__).parents[2]
OPERATIONS = "haproc.operations"
USAGE = "haproc.usage"
VERIFICATIONS = "haproc.verifications"
PAST = "TIMESTAMP '2001-02-03 04:00:00Z'"
PROGRAM_S = 120.0


@pytest.fixture(scope="module")
def archiving(started_ring: Rig) -> Iterator[None]:
    """Until the end, the ring has an archive's user and its jobs may read this project."""
    ring = started_ring.ring
    before = ring.file.read_text()

    def restart_all(text: str) -> None:
        async def restart() -> None:
            await asyncio.gather(*(ring.stop_haproc(name) for name in "abc"))
            ring.file.write_text(text)
            await asyncio.gather(*(ring.start_haproc(name) for name in "abc"))

        asyncio.run(restart())

    configured = yaml.safe_load(before)
    configured["archive"] = {"user": "anonymous"}
    configured["jobs"] = {**configured["jobs"], "readable": [str(ROOT)]}
    restart_all(yaml.safe_dump(configured, sort_keys=False))
    try:
        yield
    finally:
        restart_all(before)


@pytest.fixture
def archived(archiving: None, rig: Rig) -> Rig:
    """The ring, with an archive's user."""
    return rig


def started(rig: Rig, program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "SPARK_REMOTE": "sc://" + ",".join(rig.door(name) for name in "abc"),
        "HACLIENT_SERVERS": ",".join(rig.url(name) for name in "abc"),
    }
    command = [sys.executable, "-m", f"haproc.pipeline.{program}", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def run(rig: Rig, program: str, *arguments: str) -> str:
    process = started(rig, program, *arguments)
    out, _ = process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 0, out
    return out


def test_archive_that_is_killed_and_run_again_has_each_operation_once(archived: Rig) -> None:
    rig = archived
    table = rig.table()
    for number in range(6):
        rig.run(f"INSERT INTO {table} VALUES ({number}, 'secret {number}')")
    rig.run(f"UPDATE {table} SET name = 'x' WHERE id = 1")
    with pytest.raises(haclient.DatabaseError):
        rig.run(f"UPDATE {table} SET id = 1 / 0 WHERE id = 2")
    end = rig.log_end()
    process = started(rig, "archive", "--rows", "3")
    rig.wait(lambda: rig.status("a")["log_end"] > end + 4, PROGRAM_S)
    process.kill()
    process.communicate()
    assert "archived" in run(rig, "archive", "--rows", "50")
    again = run(rig, "archive")
    assert again == "0 operations archived\n"
    found = rig.everywhere(
        f"SELECT kind, rows, outcomes['b'].outcome, statement FROM {OPERATIONS} "
        f"WHERE exists(writes, w -> w LIKE '%.{table}') ORDER BY offset"
    )
    inserted = ("insert", 1, "applied", f"INSERT INTO {table} VALUES (?, ?)")
    assert [row[0] for row in found] == ["create_table", *["insert"] * 6, "update", "update"]
    assert found[1:7] == [inserted] * 6
    assert found[-1][2] == "failed"
    ((rows, offsets, own),) = rig.everywhere(
        f"SELECT count(*), count(DISTINCT offset), count_if(exists(writes, w -> w LIKE "
        f"'%.haproc.operations') AND kind = 'merge') FROM {OPERATIONS}"
    )
    assert rows == offsets and own == 0
    ((late,),) = rig.run(
        f"SELECT count(*) FROM {OPERATIONS} WHERE outcomes['a'].latency_ms IS NOT NULL "
        "AND outcomes['b'].latency_ms IS NOT NULL AND outcomes['c'].latency_ms IS NOT NULL"
    )
    assert late >= 8
    rig.check_equal(OPERATIONS)


def late(rig: Rig) -> None:
    """Append an operation of an hour long ago behind all archived operations."""
    rig.run(
        f"INSERT INTO {OPERATIONS} (offset, time, day, user, writes, outcomes) SELECT "
        f"max(offset) + 1, {PAST} + INTERVAL 5 MINUTES, DATE '2001-02-03', 'late', array(), "
        "map('a', named_struct('outcome', 'applied', 'error', NULL, 'latency_ms', NULL), "
        "'b', named_struct('outcome', 'applied', 'error', NULL, 'latency_ms', 7)) "
        f"FROM {OPERATIONS}"
    )


def test_usage_counts_each_statement_once_in_repeated_runs_and_includes_late_ones(
    archived: Rig,
) -> None:
    rig = archived
    table = rig.table()
    rig.run(f"INSERT INTO {table} VALUES (1, 'x'), (9, 'y')")
    rig.settled()
    run(rig, "archive")
    late(rig)
    assert "summed up from 2001-02-03 04:00" in run(rig, "usage")
    assert run(rig, "usage") == "nothing new\n"
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')")
    with pytest.raises(haclient.DatabaseError):
        rig.run(f"UPDATE {table} SET id = 1 / 0 WHERE id = 9")
    rig.settled()
    run(rig, "archive")
    late(rig)
    assert "summed up from 2001-02-03 04:00" in run(rig, "usage")
    found = rig.everywhere(
        f"SELECT table IS NULL, cluster, sum(statements), sum(rows), sum(errors), sum(lags) "
        f"FROM {USAGE} WHERE table LIKE '%.{table}' OR hour = {PAST} "
        "GROUP BY 1, 2 ORDER BY 1, cluster NULLS FIRST"
    )
    # CREATE TABLE, two INSERTs of three rows, and an UPDATE that failed everywhere.
    assert found == [
        *((False, name, 4, 3, 1, 4) for name in (None, "a", "b", "c")),
        *((True, name, 2, None, 0, 0) for name in (None, "a", "b")),
    ]
    ((lines, distinct, _),) = rig.everywhere(
        f"SELECT count(*), count(DISTINCT hour, user, coalesce(table, ''), coalesce(cluster, '')), "
        f"bit_xor(xxhash64(*)) FROM {USAGE}"
    )
    assert lines == distinct
    ((statements,),) = rig.run(f"SELECT count(*) FROM {OPERATIONS} WHERE user = 'anonymous'")
    servers = [rig.url(name) for name in "abc"]
    by_cluster = usage(servers, "cluster", 24)
    assert sorted((row[0], row[1]) for row in by_cluster) == [(each, statements) for each in "abc"]
    command = [sys.executable, "-m", "haproc", "report", "--servers", ",".join(servers), "--json"]
    shown = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    (line,) = [line for line in shown if line["table"] == f"spark_catalog.default.{table}"]
    assert (line["statements"], line["rows"], line["errors"]) == (4, 3, 1)
    assert 0 <= line["lag_ms_avg"] <= line["lag_ms_max"] <= line["latency_ms_max"]


def measured(rig: Rig, name: str, series: str) -> float:
    """Return the value of one series in a HAProc's metrics."""
    with urllib.request.urlopen(f"{rig.ring.config.peer_url(name)}/metrics") as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if line.startswith(series)]
    return float(line.rpartition(" ")[2])


def test_verification_as_a_job_stores_its_findings_and_is_in_the_metrics(archived: Rig) -> None:
    rig = archived
    table = rig.table()
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "from haproc.pipeline import verify; sys.exit(verify.main())"
    job = submit(rig, "a", code)["id"]
    assert ended(rig, "b", job)["state"] == "success", log(rig, "b", job)
    assert "a equal, b equal, c equal" in log(rig, "c", job)[-1]
    kept = rig.everywhere(
        f"SELECT cluster, finding FROM {VERIFICATIONS} "
        f"WHERE table LIKE '%.{table}' OR table IS NULL ORDER BY table IS NULL, cluster"
    )
    assert kept == [(name, "equal") for name in "abcabc"]
    equal = rig.run(f"SELECT count(*) FROM {VERIFICATIONS} WHERE table IS NOT NULL")[0][0] / 3
    rig.wait(lambda: measured(rig, "c", 'haproc_verification_tables{finding="equal"}') == equal, 9)
    assert measured(rig, "c", 'haproc_verification{finding="equal"}') == 1
    assert abs(measured(rig, "c", "haproc_verification_timestamp_seconds") - time.time()) < 300
