"""Tests of tools that send SQL, rows or jobs by clients of their own, on a real ring.

Their programs (tests/tools/programs) check the answers; the tests here check that all clusters hold
the same. `test_ring_tools` has the tools that use PySpark.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_ring_tools import alone_in, compare, done_twice
from tests.rig import Rig
from tests.tools import environment
from tests.tools.environment import AIRFLOW, CLIENTS, DATABRICKS_OLDEST

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

DAY = "2026-01-31"


@pytest.mark.parametrize("tools", [CLIENTS, DATABRICKS_OLDEST, AIRFLOW])
def test_clients_are_installed(tools: str) -> None:
    """Installing takes minutes the first time, which is too much for another test."""
    assert (environment.folder(tools) / "python").exists()


@pytest.mark.parametrize("tools", [CLIENTS, DATABRICKS_OLDEST])
def test_databricks_sdk_runs_statements(rig: Rig, tools: str) -> None:
    schema = f"sdk_{tools}"
    program = ("databricks_statements.py", rig.url("a"), schema)
    output = environment.run("", "python", *program, tools=tools)
    ids = 4 if tools == CLIENTS else 3
    rows = rig.everywhere(f"SELECT id FROM {schema}.items ORDER BY id")
    assert rows == [(n,) for n in range(1, ids + 1)]
    rig.check_equal(f"{schema}.items")
    assert "session" in output.splitlines()[-1], "the words in which a SET was refused"


def test_polars_writes_and_reads_frames(rig: Rig) -> None:
    program = ("polars_frames.py", rig.url("a"), "pl_frames")
    root = str(environment.ROOT)
    print(environment.run("", "python", *program, tools=CLIENTS, PYTHONPATH=root))
    rig.check_equal("pl_frames.frames", "pl_frames.made")


def test_adbc_gets_the_answers_of_plain_spark(rig: Rig, tmp_path: Path) -> None:
    output: list[str] = []

    def work(remote: str, schema: str, _: Path) -> None:
        parameters = [] if output else ["parameters"]
        program = ("adbc_statements.py", schema, *parameters)
        output.append(environment.run(remote, "python", *program, tools=CLIENTS))

    with done_twice(rig, "adbc", tmp_path, work) as schemas:
        print(output[0])
        assert output[0] == output[1]
        compare(rig, schemas)
        assert alone_in(rig) != "a"


@pytest.fixture
def file(rig: Rig) -> str:
    """The name of a job's program in the ring's folder."""
    (folder,) = rig.ring.config.jobs.folders
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(environment.PROGRAMS / "write_day.py", folder)).name


def test_pylivy_runs_jobs_and_shows_that_sessions_are_refused(rig: Rig, file: str) -> None:
    table = rig.table("day STRING")
    program = ("livy_batches.py", rig.url("a"), file, table)
    output = environment.run("", "python", *program, tools=CLIENTS)
    shown, sentence = output.splitlines()[-2:]
    assert "/api/2.0/sql/statements" in sentence
    assert sentence in shown, "pylivy shows the status line alone"
    assert rig.everywhere(f"SELECT day FROM {table}") == [(DAY,)]


def test_airflow_runs_jobs_that_it_waits_for_or_defers(rig: Rig, file: str, tmp_path: Path) -> None:
    table = rig.table("day STRING")
    host, _, port = rig.url("a").removeprefix("http://").partition(":")
    ring = {"conn_type": "livy", "schema": "http", "host": host, "port": int(port)}
    ring["extra"] = {"Authorization": "Bearer a token that a ring without users ignores"}
    variables: dict[str, Any] = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONN_RING": json.dumps(ring),
        "AIRFLOW__CORE__DAGS_FOLDER": str(environment.HERE / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DAYS_FILE": file,
        "DAYS_TABLE": table,
    }

    def airflow(program: str, *arguments: str) -> str:
        return environment.run("", program, *arguments, tools=AIRFLOW, **variables)

    assert "HAPROC_" in airflow("python", "airflow_hook.py", file, table)
    airflow("airflow", "db", "migrate")
    airflow("airflow", "dags", "reserialize")
    with pytest.raises(AssertionError, match="DagRun failed") as raised:
        airflow("airflow", "dags", "test", "days", DAY)
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(raised.value), "of the task that fails: its job's log"
    assert rig.everywhere(f"SELECT day FROM {table}") == [(DAY,), (DAY,)]
    _, jobs = rig.get("a", "/batches?from=0&size=1000")
    states = {each["haproc"]["request_id"]: each["state"] for each in jobs["sessions"]}
    assert {states[f"{table}-{task}-{DAY}-1"] for task in ("waits", "deferred")} == {"success"}
