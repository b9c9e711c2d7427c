"""Adding and removing clusters: the operator door, and the commands that use it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from haproc.classify.rights import Role
from haproc.cli.main import main
from haproc.config.sections import User, digest_of
from haproc.failure import refused
from tests.unit.door_rig import Rig, door
from tests.unit.test_doors_openapi import check
from tests.unit.test_doors_queue import ask

JOIN = {"peer": "host-d:8090", "client_url": "http://host-d:8080"}


async def test_member_requests_are_answered_as_described(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        for method, path, body, described in (
            ("get", "/ha/v1/members", None, "/ha/v1/members"),
            ("post", "/ha/v1/members/d/join", JOIN, "/ha/v1/members/{cluster}/join"),
            ("post", "/ha/v1/members/d/leave", {}, "/ha/v1/members/{cluster}/leave"),
        ):
            status, answer = await ask(rig, method, path, body)
            assert status == 200
            check(method, described, status, answer)
        assert rig.admission.received == [
            ("join", "d", "host-d:8090", "http://host-d:8080"),
            ("leave", "d"),
        ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("d/join", {}),
        ("d/join", {"peer": "host-d:8090"}),
        ("d/join", {**JOIN, "peer": "host-d"}),
        ("d/join", {**JOIN, "peer": "0.0.0.0:8090"}),
        ("d/join", {**JOIN, "peer": "host-d:0"}),
        ("d/join", {**JOIN, "client_url": "host-d:8080"}),
        ("d/join", {**JOIN, "spark": "sc://x"}),
        ("%20/join", JOIN),
        ("d/leave", {"yes": True}),
    ],
)
async def test_wrong_member_requests_are_refused_and_do_nothing(
    tmp_path: Path, path: str, body: Any
) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert (await ask(rig, "post", f"/ha/v1/members/{path}", body))[0] == 400
        assert rig.admission.received == []


async def test_member_requests_without_the_secret_are_refused(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        for path, body in (("d/join", JOIN), ("d/leave", {})):
            assert (await ask(rig, "post", f"/ha/v1/members/{path}", body, {}))[0] == 401
        assert (await ask(rig, "get", "/ha/v1/members", None, {}))[0] == 401
        assert rig.admission.received == []


# -- commands --------------------------------------------------------------------------------

ADD = ("--listen", "127.0.0.1:9080", "--peer", "127.0.0.1:9090", "--spark", "sc://127.0.0.1:9002")


def file_of(tmp_path: Path, rig: Rig) -> Path:
    """Write a ring's file in which cluster b has the rig's HAProc; the HAProc of a is dead."""
    (tmp_path / "secret").write_text("ring-secret")
    clusters = [
        {
            "name": name,
            "listen": f"127.0.0.1:{port + 1}",
            "peer": f"127.0.0.1:{peer}",
            "spark": {"url": f"sc://127.0.0.1:{port + 2}"},
        }
        for name, port, peer in (("a", 5, 4), ("b", 15, rig.listener.port))
    ]
    tree = {
        "ring": "demo",
        "log": "sqlite:log.db",
        "secret": {"file": "secret"},
        "clusters": clusters,
    }
    file = tmp_path / "ring.yaml"
    file.write_text("# ours\n" + yaml.safe_dump(tree, sort_keys=False))
    return file


async def run(*words: str) -> int:
    return await asyncio.to_thread(main, words)


async def test_cluster_add_informs_the_ring_and_then_changes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        file = file_of(tmp_path, rig)
        before = file.read_text()
        trust = ("--spark", "sc://127.0.0.1:9002/;use_ssl=true", "--spark-ca-file", __file__)
        assert await run("cluster", "add", "d", "--config", str(file), *ADD[:4], *trust) == 0
        assert rig.admission.received == [("join", "d", "127.0.0.1:9090", "http://127.0.0.1:9080")]
        assert (tmp_path / "ring.yaml.bak").read_text() == before
        assert file.read_text().startswith(before)
        added = yaml.safe_load(file.read_text())["clusters"][-1]
        assert (added["name"], added["spark"]["ca_file"]) == ("d", __file__)
        assert "haproc start" in capsys.readouterr().out
        # Again: the file names it already.
        assert await run("cluster", "add", "d", "--config", str(file)) == 0
        assert await run("cluster", "remove", "d", "--config", str(file), "--yes") == 0
        assert rig.admission.received[-1] == ("leave", "d")
        assert file.read_text() == before


async def test_token_of_an_operator_takes_precedence_over_the_ring_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "haproc.audit")
    users = (User("run", token_hash=digest_of("operates"), roles=(Role.OPERATOR,)),)
    async with door(tmp_path, operator=True, users=users) as rig:
        monkeypatch.setenv("HAPROC_TOKEN", "operates")
        file = str(file_of(tmp_path, rig))
        assert await run("cluster", "add", "d", "--config", file, *ADD) == 0
        lines = [each.getMessage() for each in caplog.records if each.name == "haproc.audit"]
        assert [json.loads(line)["user"] for line in lines] == ["run"]
        monkeypatch.setenv("HAPROC_TOKEN", "another")
        assert await run("cluster", "remove", "d", "--config", file, "--yes") != 0
        assert len(rig.admission.received) == 1


async def test_refused_cluster_add_leaves_the_file_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        file = file_of(tmp_path, rig)
        before = file.read_text()
        rig.admission.error = refused("HAPROC_NOT_NOW", "what lies below 7 was trimmed")
        assert await run("cluster", "add", "d", "--config", str(file), *ADD) == 1
        error_output = capsys.readouterr().err
        assert "a at http://" in error_output and "below 7 was trimmed" in error_output
        # What could not be used is not even asked for.
        wrong = ("--listen", "127.0.0.1:4", *ADD[2:])
        assert await run("cluster", "add", "d", "--config", str(file), *wrong) == 2
        assert "already used" in capsys.readouterr().err
        assert await run("cluster", "add", "d", "--config", str(file), *ADD[:2]) == 2
        assert "--peer, --spark" in capsys.readouterr().err
        assert await run("cluster", "remove", "b", "--config", str(file)) == 1
        assert len(rig.admission.received) == 1
        assert file.read_text() == before and not (tmp_path / "ring.yaml.bak").exists()
