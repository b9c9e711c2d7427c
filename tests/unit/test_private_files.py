"""Tests that HAProc's files are readable by its own user only, and that output holds no secret."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from dmq import Record
from dmq.sqlite import SqliteLog
from haproc.cli.main import main
from haproc.config.model import Config
from haproc.ring.process import DetachedProcess


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_commands_create_files_for_their_user_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", "SELECT 1"]) == 0
    capsys.readouterr()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    assert (mode(tmp_path / "folder"), mode(tmp_path / "folder" / "file")) == (0o700, 0o600)


async def test_log_in_a_file_is_readable_by_its_user_only(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    try:
        await log.append([Record("x", "y")])
        files = ("log.db", "log.db-wal", "log.db-shm", "log.db-lock")
        assert {name: oct(mode(tmp_path / name)) for name in files} == dict.fromkeys(files, "0o600")
    finally:
        await log.close()


async def test_log_file_of_a_process_is_closed_to_others_even_if_it_was_open(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.touch(mode=0o644)
    process = DetachedProcess(tmp_path / "pid")
    process.start([sys.executable, "-c", ""], folder=tmp_path, log=log, environment=os.environ)
    assert await process.wait_gone(20)
    assert mode(log) == 0o600


def dataclasses_in(kind: type) -> Iterator[type]:
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for each in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(each) and isinstance(each, type):
                yield from dataclasses_in(each)


def test_configuration_hides_its_secrets_when_it_is_printed() -> None:
    secrets = re.compile("token|password|secret")
    shown = [
        f"{kind.__name__}.{field.name}"
        for kind in dataclasses_in(Config)
        for field in dataclasses.fields(kind)
        if secrets.search(field.name)
        and field.repr
        and field.type in ("str", "str | None")
        and field.name != "token_hash"  # of 256 random bits
    ]
    assert shown == []
