"""The classify door, which reports how a statement would be treated, and its command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from haproc.cli.main import main
from haproc.config.sections import User
from tests.unit.door_rig import door
from tests.unit.test_doors_openapi import check

PATH = "/api/ha/classify"
USERS = (User("ann", "token-of-ann"),)
ANNS = {"Authorization": "Bearer token-of-ann"}


async def test_classification_is_reported_to_the_user_without_running_the_statement(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        body = {"statement": "DELETE FROM t", "schema": "s", "tree": True}
        got, answer = await rig.ask("post", PATH, json=body, headers=ANNS)
        check("post", PATH, got, answer)
        assert answer == {"statement": "DELETE FROM t", "rule": "ann", "tree": ["Project"]}
        assert rig.service.requests == []


async def test_body_that_is_no_statement_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for body in ({}, {"statement": 1}, {"statement": "SELECT 1", "wait": 1}):
            assert await rig.status_of("post", PATH, json=body) == 400


@pytest.mark.parametrize("json_wanted", [True, False])
async def test_classify_command_uses_the_first_server_that_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    json_wanted: bool,
) -> None:
    statements = tmp_path / "all.sql"
    statements.write_text("SELECT 1\nDELETE FROM t\n")
    monkeypatch.setenv("HACLIENT_TOKEN", "token-of-ann")
    async with door(tmp_path, users=USERS) as rig:
        servers = f"http://127.0.0.1:1,{rig.url}"
        more = ["--json"] if json_wanted else []
        command = ["classify", "--server", servers, "--file", str(statements), *more]
        assert await asyncio.to_thread(main, command) == 0
    output = capsys.readouterr().out
    if json_wanted:
        assert [each["statement"] for each in json.loads(output)] == ["SELECT 1", "DELETE FROM t"]
    else:
        assert output.count("statement:") == 2


async def test_classify_command_without_a_token_reports_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        command = ["classify", "--server", rig.url, "SELECT 1"]
        assert await asyncio.to_thread(main, command) == 3
    assert "token" in capsys.readouterr().err
