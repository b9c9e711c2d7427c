"""Tests of operators' commands: start, stop, status, ring, config check, classify; exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import haclient
from haproc.cli.main import main
from haproc.ring.local import LocalRing
from tests.rig import Rig

ROOT = Path(__file__).parents[2]
RUN_S = 120
pytestmark = pytest.mark.logs("sqlite")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this checkout."""
    command = [str(ROOT / "scripts" / words[0]), *words[1:]]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, env=environment
    )


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# -- one HAProc ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.spark
def test_scripts_start_stop_and_show_a_haproc_and_may_be_repeated(rig: Rig) -> None:
    file = str(rig.ring.file)
    one = ("--config", file, "--cluster", "c")
    pid = rig.ring.pids("c")["haproc"]
    assert run("haproc-start", *one).returncode == 0
    assert rig.ring.pids("c")["haproc"] == pid
    shown = run("haproc-status", "--config", file)
    assert shown.returncode == 0
    assert [line.split()[:2] for line in shown.stdout.splitlines()[:4]] == [
        ["CLUSTER", "STATE"],
        *(["abc"[n], "READY"] for n in range(3)),
    ]
    assert shown.stdout.splitlines()[4].startswith("in sync, as a sees it: ")
    for _ in range(2):
        stopped = run("haproc-stop", *one)
        assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "")
        assert rig.ring.pids("c")["haproc"] is None
    shown = run("haproc-status", "--config", file, "--json")
    answers = json.loads(shown.stdout)
    assert shown.returncode == 3
    assert {name: answer["state"] for name, answer in answers.items()} == {
        "a": "READY",
        "b": "READY",
        "c": "-",
    }
    assert "no answer" in answers["c"]["error"]
    assert run("haproc-start", *one, "--ready", "--wait-s", "100").returncode == 0
    assert rig.ring.pids("c")["haproc"] not in (None, pid)
    assert rig.run("SELECT 1", order="c") == [(1,)]


def test_wrong_configuration_is_refused_by_each_command_with_the_path_of_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ring.yaml"
    file.write_text("ring: r\nlog: sqlite:log.db\nlimitz: {}\nclusters: [{name: a}]\n")
    path = str(file)
    one = ("--config", path, "--cluster", "a")
    for words in (
        ("start", *one),
        ("stop", *one),
        ("serve", *one),
        ("status", "--config", path),
        ("config", "check", path),
    ):
        assert main(words) == 2, words
        error_text = capsys.readouterr().err
        assert "limitz" in error_text and "clusters[0].listen" in error_text, words
    assert main(["config", "check", path, "--json"]) == 2
    assert printed(capsys)["ok"] is False
    assert main(["start", "--config", str(tmp_path / "absent.yaml"), "--cluster", "a"]) == 2
    with pytest.raises(SystemExit) as caught:
        main(["start", "--cluster", "a"])
    assert caught.value.code == 2


def test_correct_configuration_is_checked_without_starting_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = LocalRing.open_or_create(tmp_path, clusters=2)
    file = str(ring.file)
    assert main(["config", "check", file]) == 0
    assert "correct" in capsys.readouterr().out
    assert main(["config", "check", file, "--json"]) == 0
    assert printed(capsys) == {"ok": True, "ring": "local", "clusters": ["a", "b"]}
    assert main(["start", "--config", file, "--cluster", "z"]) == 2
    assert "it has a, b" in capsys.readouterr().err
    assert main(["stop", "--config", file, "--cluster", "a"]) == 0
    assert main(["status", "--config", file]) == 3
    capsys.readouterr()
    folder = ("--folder", str(tmp_path))
    assert main(["ring", "status", *folder, "--json"]) == 3
    assert printed(capsys)["b"]["pids"] == {"haproc": None, "spark": None}
    assert main(["ring", "kill", "a", *folder]) == 0
    assert "did not run" in capsys.readouterr().out
    assert main(["ring", "down", *folder]) == 0
    assert main(["ring", "kill", "z", *folder]) == 1
    assert main(["ring", "status", "--folder", str(tmp_path / "absent")]) == 1
    assert "haproc ring up" in capsys.readouterr().err


@pytest.mark.spark
def test_haproc_that_cannot_listen_reports_it_and_the_running_one_is_untouched(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same cluster's HAProc a second time, as if from another folder."""
    copy = _variant(rig, tmp_path, state_dir=str(tmp_path / "state"))
    assert main(["start", "--config", str(copy), "--cluster", "a"]) == 3
    error_text = capsys.readouterr().err
    assert f"already listens on {rig.ring.config.cluster('a').peer}" in error_text
    assert rig.run("SELECT 1", order="a") == [(1,)]
    assert rig.status("a")["state"] == "READY"


@pytest.mark.thorough
@pytest.mark.spark
def test_haproc_that_is_stopped_answers_its_running_write_before_it_ends(rig: Rig) -> None:
    table = rig.table("id BIGINT")
    # Few rows: with many, the Sparks of a busy machine answer no probe, and the cluster is DOWN.
    statement = f"INSERT INTO {table} SELECT id FROM range(1000)"
    answers: list[tuple[int, Any]] = []

    def write() -> None:
        # Not haclient, which leaves a door that refuses its probes for another one.
        body = {"statement": statement, "wait_timeout": "50s"}
        answers.append(rig.post("b", "/api/2.0/sql/statements", body))

    end = rig.log_end()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    rig.wait(lambda: rig.status("a")["log_end"] > end, 60)
    assert writer.is_alive()
    rig.ring.signal("b", "haproc", signal.SIGTERM)
    rig.gone("b", 120)
    writer.join(60)
    ((code, answer),) = answers
    assert code == 200, answer
    assert answer["status"]["state"] == "SUCCEEDED", answer
    assert answer["ha"]["log_offset"] == end
    rig.start("b")
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(1000, 1000)]


@pytest.mark.thorough
@pytest.mark.spark
def test_haproc_set_to_exit_when_its_cluster_is_down_ends_with_code_4(
    rig: Rig, tmp_path: Path
) -> None:
    """A ring of its own over one of the ring's Sparks; it writes nothing there."""
    described = yaml.safe_load(rig.ring.file.read_text())
    (cluster,) = (c for c in described["clusters"] if c["name"] == "c")
    local = LocalRing.open_or_create(tmp_path / "ports", clusters=1).config.clusters[0]
    cluster["listen"] = f"127.0.0.1:{local.listen.port}"
    cluster["peer"] = f"127.0.0.1:{local.peer.port}"
    del cluster["connect"]
    file = _variant(
        rig,
        tmp_path,
        ring="solo",
        log=f"sqlite://{tmp_path}/log.db",
        state_dir=str(tmp_path / "state"),
        clusters=[cluster],
        jobs={},
        on_cluster_down="exit",
    )
    assert main(["start", "--config", str(file), "--cluster", "c", "--ready"]) == 0
    assert main(["stop", "--config", str(file), "--cluster", "c"]) == 0
    command = [sys.executable, "-m", "haproc", "serve", "--config", str(file), "--cluster", "c"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{local.listen.port}"
        with haclient.connect(url, outage_s=60, discover=False) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        rig.ring.signal("c", "spark", signal.SIGSTOP)
        assert process.wait(60) == 4
    finally:
        rig.ring.signal("c", "spark", signal.SIGCONT)
        process.kill()
        process.wait()
    assert "is down" in (tmp_path / "log").read_text()


def _variant(rig: Rig, folder: Path, **changes: Any) -> Path:
    """Write the ring's configuration with some keys changed."""
    described = yaml.safe_load(rig.ring.file.read_text())
    described["secret"]["file"] = str(rig.ring.folder / described["secret"]["file"])
    described.update(changes)
    for cluster in described["clusters"]:
        token = cluster["spark"]["token"]
        token["file"] = str(rig.ring.folder / token["file"])
    folder.mkdir(exist_ok=True)
    file = folder / "variant.yaml"
    file.write_text(yaml.safe_dump(described))
    return file


# -- a local ring ----------------------------------------------------------------------------


@pytest.mark.spark
def test_ring_commands_kill_restart_and_show_a_cluster(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", str(rig.ring.folder))
    assert main(["ring", "status", *folder, "--json"]) == 0
    before = printed(capsys)
    assert {name: answer["pids"] for name, answer in before.items()} == {
        name: rig.ring.pids(name) for name in "abc"
    }
    assert main(["ring", "kill", "b", "--what", "haproc", *folder]) == 0
    assert "b: haproc killed" in capsys.readouterr().out
    rig.gone("b")
    assert main(["ring", "status", *folder]) == 3
    assert "b: HAProc pid -, Spark pid" in capsys.readouterr().out
    assert main(["ring", "restart", "b", *folder]) == 0
    assert "HAProc serves" in capsys.readouterr().err
    began = time.monotonic()
    assert main(["ring", "up", *folder]) == 0
    assert time.monotonic() - began < 30
    assert rig.ring.urls in capsys.readouterr().out
    assert main(["ring", "status", *folder, "--json"]) == 0
    after = printed(capsys)
    assert after["a"]["pids"] == before["a"]["pids"]
    assert after["b"]["pids"]["spark"] == before["b"]["pids"]["spark"]
    assert after["b"]["incarnation"] != before["b"]["incarnation"]


# -- classify --------------------------------------------------------------------------------


def test_classify_shows_a_statement_or_a_file_of_statements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", "INSERT INTO t VALUES (1)", "--json"]) == 0
    one = printed(capsys)
    assert (one["class"], one["writes"]) == ("asynchronous", ["spark_catalog.default.t"])
    assert main(["classify", "INSERT INTO t VALUES (1)"]) == 0
    text = capsys.readouterr().out
    assert "asynchronous" in text and "spark_catalog.default.t" in text
    file = tmp_path / "statements.sql"
    file.write_text("SELECT 1\n\nDROP TABLE t\nSELECT 1; SELECT 2\n")
    assert main(["classify", "--file", str(file), "--json"]) == 3
    assert [each.get("class") for each in printed(capsys)] == ["query", None, None]
    assert main(["classify"]) == 2
    assert main(["classify", "SELECT 1", "--rules", str(tmp_path / "absent.yaml")]) == 2
