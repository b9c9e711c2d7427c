"""``haproc log``: moving a log from one file to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from dmq import Cursor, LogError, Record, open_both
from haproc.cli import logs
from haproc.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAPROC_SECRET", "s" * 32)
    monkeypatch.setenv("HAPROC_SPARK_TOKEN", "t" * 32)


def config(folder: Path, log: str) -> str:
    """Write a configuration whose log is a file of this name; return its path."""
    settings = yaml.safe_load((ROOT / "conf" / "ring.local.yaml").read_text())
    settings["log"] = f"sqlite://{folder / log}"
    (folder / f"{log}.yaml").write_text(yaml.safe_dump(settings))
    return str(folder / f"{log}.yaml")


def act(folder: Path, log: str, work: Any) -> Any:
    """Run a function on a log and its store."""

    async def run() -> Any:
        opened = await open_both(f"sqlite://{folder / log}")
        try:
            return await work(*opened)
        finally:
            for each in opened:
                await each.close()

    return asyncio.run(run())


async def fill(log: Any, store: Any) -> str:
    await log.append([Record("claim", "a")])
    await log.commit_cursor("a", Cursor(1, "", 0))
    await store.put("job/1", b"x")
    return str(await log.identity())


async def look(log: Any, store: Any) -> tuple[Any, ...]:
    kept = await store.get("job/1")
    return await log.identity(), await log.end(), await log.load_cursor("a"), kept.value


def test_exported_log_moves_and_the_old_one_is_closed_until_it_is_reopened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, file = config(tmp_path, "old"), config(tmp_path, "new"), str(tmp_path / "ring.dmq")
    identity = act(tmp_path, "old", fill)
    assert main(["log", "reopen", "--config", old]) == 1
    assert "was not left" in capsys.readouterr().err
    assert main(["log", "export", file, "--config", old]) == 0
    assert f"haproc log import {file} --config {old}" in capsys.readouterr().out
    with pytest.raises(LogError, match=f"haproc log export to {file}"):
        act(tmp_path, "old", look)

    assert main(["log", "import", file, "--config", new]) == 0
    assert "1 records, offsets from 0 to 1, 1 cursors, 1 keys" in capsys.readouterr().out
    assert act(tmp_path, "new", look) == (identity, 1, Cursor(1, "", 0), b"x")
    assert main(["log", "import", file, "--config", new]) == 1
    assert "is not new" in capsys.readouterr().err

    assert main(["log", "reopen", "--config", old]) == 0
    assert act(tmp_path, "old", look) == (identity, 1, Cursor(1, "", 0), b"x")


def test_failed_export_leaves_the_log_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, file = config(tmp_path, "old"), tmp_path / "ring.dmq"
    act(tmp_path, "old", fill)
    file.write_text("something else")
    assert main(["log", "export", str(file), "--config", old]) == 1
    assert "is there already" in capsys.readouterr().err
    assert file.read_text() == "something else"
    assert act(tmp_path, "old", look)[1] == 1


@pytest.mark.parametrize("command", ["export", "import", "reopen"])
def test_log_command_changes_nothing_while_a_haproc_answers(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    async def answers(_: object) -> dict[str, dict[str, str]]:
        return {"a": {"state": "READY"}, "b": {"state": "-", "error": "no answer"}}

    monkeypatch.setattr(logs, "ask_all", answers)
    words = [] if command == "reopen" else [str(tmp_path / "ring.dmq")]
    assert main(["log", command, *words, "--config", config(tmp_path, "old")]) == 1
    assert "a: a HAProc runs there" in capsys.readouterr().err
    assert not (tmp_path / "old").exists()
    assert not (tmp_path / "ring.dmq").exists()


def test_missing_import_file_is_refused_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = config(tmp_path, "new")
    assert main(["log", "import", str(tmp_path / "none.dmq"), "--config", new]) == 1
    assert "none.dmq" in capsys.readouterr().err
