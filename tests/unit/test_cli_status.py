"""``haproc status`` shows each HAProc's own answer, and the HAProcs that receive its heartbeats."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from haproc.cli.main import main
from haproc.cli.nodes import ask_all, print_status
from haproc.engine.commits import Commit
from haproc.replicate.agree.findings import Foreign
from tests.presences import ring_config


def test_status_shows_the_haprocs_that_receive_heartbeats_of_each_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def clusters(**direct: bool) -> list[dict[str, object]]:
        return [{"name": name, "direct": is_direct} for name, is_direct in direct.items()]

    print_status(
        {
            "a": {
                "state": "READY",
                "clusters": clusters(a=True, b=True, c=False),
                "in_sync": ["a", "b"],
                "high_watermark": 7,
            },
            "b": {"state": "READY", "clusters": clusters(a=True, b=True, c=False)},
            "c": {"state": "-", "error": "no answer"},
        }
    )
    head, a, b, c, sync = capsys.readouterr().out.splitlines()
    at = head.index("RECEIVED BY")
    assert [line[at : at + 8].strip() for line in (a, b, c)] == ["b", "a", ""]
    assert "no answer" in c
    assert sync == "in sync, as a sees it: a b; high watermark 7"


def test_status_shows_the_log_and_the_cluster_that_holds_trimming_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = {"enabled": True, "log_start": 1000, "log_end": 20_000, "held_by": "", "held_records": 0}
    newer = {**look, "log_end": 20_500, "held_by": "c", "held_records": 12_000}
    names = {"names": ["a", "b"], "since_offset": 7, "disagreement": "the file does not name d"}
    print_status(
        {
            "a": {
                "state": "READY",
                "log_end": 20_600,
                "trim": look,
                "members": {**names, "disagreement": ""},
            },
            "b": {"state": "READY", "trim": newer, "members": names},
            "c": {"state": "-", "error": "no answer"},
        }
    )
    shown = capsys.readouterr().out
    assert "log: 19,600 records, from offset 1,000 on; trim held back by c, 12,000 records" in shown
    assert "b: the file does not name d" in shown


def test_status_shows_the_spark_settings_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(
        {
            "a": {
                "state": "READY",
                "settings": {
                    "differing": [{"name": "version.delta", "clusters": ["b", "c"]}],
                    "unfit": ["spark.sql.filesourceTableRelationCacheSize"],
                },
            },
            "b": {"state": "READY"},
        }
    )
    shown = capsys.readouterr().out.splitlines()[3:]
    assert shown == [
        "a: its Spark has another version.delta than b, c",
        "a: spark.sql.filesourceTableRelationCacheSize must have another value, see its log",
    ]


def test_status_shows_a_haproc_that_fell_back_to_the_mesh(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fine = {"configured": "redis", "in_use": "redis", "reason": ""}
    fallen = {"configured": "redis", "in_use": "mesh", "reason": "Redis (r:6379): no answer"}
    print_status(
        {
            "a": {"state": "READY", "reason": "", "transport": fine},
            "b": {"state": "READY", "reason": "clusters differ", "transport": fallen},
        }
    )
    _, a, b = capsys.readouterr().out.splitlines()
    assert "mesh" not in a
    assert "clusters differ; heartbeats go over the mesh: Redis (r:6379): no answer" in b


def test_status_finds_a_local_ring_in_the_working_folder_or_a_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert f"there is no ring in {tmp_path}/.ring: give --config" in capsys.readouterr().err
    (tmp_path / ".ring").mkdir()
    monkeypatch.setenv("RING_SECRET", "a-secret-of-usual-length")
    spark = "{url: 'sc://127.0.0.1:3'}"
    cluster = f"{{name: a, listen: 127.0.0.1:1, peer: 127.0.0.1:2, spark: {spark}}}"
    text = f"ring: r\nlog: sqlite:x\nsecret: {{env: RING_SECRET}}\nclusters: [{cluster}]\n"
    (tmp_path / ".ring" / "ring.yaml").write_text(text)
    assert main(["status"]) == 3
    assert "no answer from http://127.0.0.1:2" in capsys.readouterr().out
    assert main(["status", "--folder", ".ring"]) == 3
    capsys.readouterr()


async def test_status_of_a_haproc_that_does_not_run_contains_a_short_reason(tmp_path: Path) -> None:
    config = ring_config(tmp_path, None)
    config = dataclasses.replace(config, clusters=config.clusters[:1])
    url = config.peer_url("a")
    answers = await ask_all(config)
    assert answers == {"a": {"state": "-", "error": f"no answer from {url}: Connection refused"}}


def test_status_shows_commits_past_haproc_until_they_are_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def status(*commits: Foreign) -> dict[str, object]:
        return {"state": "READY", "foreign": {"commits": [each.json() for each in commits]}}

    first = Foreign("s.t", Commit(1, 0, "WRITE"), 7)
    newest = Foreign("s.\x1b[2Jt", Commit(2, 1000, "MERGE", "ann", "Spark"), 7)
    tidied = Foreign("s.t", Commit(3, 2000, "OPTIMIZE"), 7)
    print_status({"a": status(first, newest, tidied), "b": status(first.verified(7), tidied)})
    assert capsys.readouterr().out.splitlines()[3:] == [
        "a: tables were written past HAProc, the newest commit: s.\\u001b[2Jt version 2, MERGE by "
        "ann, 1970-01-01T00:00:01.000Z; run haproc verify"
    ]
