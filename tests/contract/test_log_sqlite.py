"""Promises of the SQLite log alone: its file, its limits, and the faults of a disk."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dmq import Cursor, LogError, LogUnavailableError, Record, open_log
from dmq.sqlite import SqliteLog
from dmq.sqlite_file import WAL_BYTES_MAX, WriterLock
from tests.contract.processes import ROOT, line, process

DEADLINE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


async def test_open_again_keeps_the_id_of_the_log(tmp_path: Path) -> None:
    ids = set()
    for _ in range(2):
        log = await SqliteLog.open(tmp_path / "log.db")
        ids.add(await log.identity())
        await log.close()
    assert len(ids) == 1


async def test_open_of_many_handles_at_once_creates_one_log(tmp_path: Path) -> None:
    logs = await asyncio.gather(*(SqliteLog.open(tmp_path / "log.db") for _ in range(6)))
    assert len({await log.identity() for log in logs}) == 1
    offsets = await asyncio.gather(*(log.append([Record("test")]) for log in logs))
    assert sorted(offsets) == [[number] for number in range(6)]
    for log in logs:
        await log.close()


async def test_open_of_an_empty_file_creates_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    log = await SqliteLog.open(tmp_path / "log.db")
    assert await log.append([Record("test")]) == [0]
    await log.close()


async def test_open_of_a_file_that_is_no_database_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a log " * 500)
    with pytest.raises(LogError, match=r"notes\.txt is not a log") as caught:
        await SqliteLog.open(path)
    assert not caught.value.retriable
    assert path.read_text() == "not a log " * 500


async def test_open_of_another_programs_database_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "other.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(LogError, match="is not a log, but another program's"):
        await SqliteLog.open(path)
    assert path.read_bytes() == before


async def test_open_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await (await SqliteLog.open(path)).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE meta SET value = 99 WHERE name = 'schema_version'")
    db.close()
    with pytest.raises(LogError, match=r"schema version 99.*upgrade"):
        await SqliteLog.open(path)


@pytest.mark.parametrize("path", ["missing/log.db", "file/log.db"])
async def test_open_without_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="folder must exist and be writable") as caught:
        await SqliteLog.open(tmp_path / path)
    assert not caught.value.retriable


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o666), (0o777, 0o444)])
async def test_open_of_a_file_or_folder_without_write_permission_is_refused(
    tmp_path: Path, folder_mode: int, file_mode: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    await (await SqliteLog.open(folder / "log.db")).close()
    (folder / "log.db-lock").unlink()
    (folder / "log.db").chmod(file_mode)
    folder.chmod(folder_mode)
    # Root may write anywhere, so it becomes nobody; the folder is reached as the working one.
    code = """if True:
        import asyncio, os, sys
        from dmq.sqlite import SqliteLog
        from dmq import LogError
        os.chdir(sys.argv[1])
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            asyncio.run(SqliteLog.open("log.db"))
        except LogError as error:
            print(type(error).__name__, error)
    """
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    done = run_python(code, str(folder))
    folder.chmod(0o755)
    assert done.stdout.startswith("LogError"), done
    assert "writ" in done.stdout


async def test_append_to_a_full_disk_is_unavailable_and_works_again_with_space(
    tmp_path: Path,
) -> None:
    # A limit on file sizes makes the real write call fail as a full disk does.
    code = """if True:
        import asyncio, resource, sys
        from dmq import LogUnavailableError, Record
        from dmq.sqlite import SqliteLog
        async def main():
            log = await SqliteLog.open(sys.argv[1])
            await log.append([Record("test", "before")])
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            try:
                await log.append([Record("test", "big", payload=bytes(2 << 20))])
            except LogUnavailableError as error:
                print("refused", error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            await log.append([Record("test", "after")])
            print([entry.record.key for entry in await log.read(0)])
            await log.close()
        asyncio.run(main())
    """
    done = run_python(code, str(tmp_path / "log.db"))
    assert done.stdout.startswith("refused"), done
    assert done.stdout.endswith("['before', 'after']\n"), done


async def test_append_to_a_removed_file_is_unavailable(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([Record("test")])
    (tmp_path / "log.db").unlink()
    for use in (log.append([Record("test")]), log.end()):
        with pytest.raises(LogUnavailableError):
            await use
    await log.close()


async def test_writer_lock_held_by_another_is_unavailable_and_its_process_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db-lock"
    holder = WriterLock(path)
    waiting = WriterLock(path, timeout_s=0.1)
    with (
        holder.held(),
        pytest.raises(LogUnavailableError, match=f"process {os.getpid()} "),
        waiting.held(),
    ):
        pass
    with waiting.held():
        pass
    holder.close()
    waiting.close()


async def test_append_continues_while_a_writer_process_is_stopped(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'log.db'}"
    log = await open_log(url)
    async with process("log_process.py", "answer", url) as child:
        assert await line(child) == "ready\n"
        # While the lock is held here, the child is stopped without it.
        lock = WriterLock(tmp_path / "log.db-lock")
        with lock.held():
            child.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED)
        lock.close()
        assert await asyncio.wait_for(log.append([Record("test")]), DEADLINE_S) == [0]
    await log.close()


async def test_appends_and_commits_of_one_loop_turn_share_one_transaction(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    await log.append([Record("test")])
    wal = tmp_path / "log.db-wal"
    before = wal.stat().st_size
    await log.append([Record("test")])
    alone = wal.stat().st_size - before
    await asyncio.gather(
        *(log.append([Record("test")]) for _ in range(20)),
        *(log.commit_cursor(f"reader {n}", Cursor(n)) for n in range(20)),
    )
    assert wal.stat().st_size - before - alone < 5 * alone
    await log.close()


async def test_wait_sees_a_record_whose_writer_died_before_the_wake_up(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    waiting = asyncio.create_task(log.wait(0, DEADLINE_S))
    assert not await log.wait(0, 0.05)
    db = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    db.execute("INSERT INTO records (data) VALUES (x'00')")
    db.close()
    began = time.monotonic()
    assert await waiting
    assert time.monotonic() - began < DEADLINE_S / 2
    await log.close()


async def test_trim_frees_disk_space(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path)
    for _ in range(8):
        await log.append([Record("test", payload=bytes(1 << 20))] * 5)
    await log.append([Record("test", "last")])
    full = 40 << 20

    def size() -> int:
        return sum(file.stat().st_size for file in tmp_path.iterdir())

    assert size() > full
    await log.trim(40)
    await until(lambda: size() < full // 2)
    assert [entry.record.key for entry in await log.read(40)] == ["last"]
    await log.close()


async def test_trim_that_was_interrupted_is_finished_by_the_next_handle(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path)
    await log.append([Record("test")] * 3000)
    trimming = asyncio.create_task(log.trim(2999))
    await asyncio.sleep(0)
    await log.close()
    await trimming
    log = await SqliteLog.open(path)

    def stored() -> int:
        db = sqlite3.connect(path)
        try:
            return int(db.execute("SELECT count(*) FROM records").fetchone()[0])
        finally:
            db.close()

    await until(lambda: stored() == 1)
    assert await log.start() == 2999
    await log.close()


async def test_wal_stays_bounded_while_readers_are_active(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db")
    payload = bytes(1 << 20)
    stop = asyncio.Event()

    async def read_on() -> None:
        while not stop.is_set():
            await log.read(0, records_max=8)

    readers = [asyncio.create_task(read_on()) for _ in range(2)]
    largest = 0
    for _ in range(60):
        await log.append([Record("test", payload=payload)] * 4)
        largest = max(largest, (tmp_path / "log.db-wal").stat().st_size)
    stop.set()
    await asyncio.gather(*readers)
    assert largest < 2 * WAL_BYTES_MAX
    await log.close()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://host/topic", "known are memory:"),
        ("log.db", "known are memory:"),
        ("sqlite", "known are memory:"),
        ("memory:name", "has no name"),
        ("sqlite:", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://var/log.db", "sqlite:///var/log.db"),
    ],
)
async def test_open_log_of_an_invalid_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        await open_log(url)


async def test_open_log_of_a_relative_path_uses_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:a b%20#?.db", f"sqlite://{tmp_path}/a b%20#?.db"):
        log = await open_log(url)
        await log.append([Record("test")])
        await log.close()
    assert (tmp_path / "a b%20#?.db").exists()
    log = await open_log("sqlite:a b%20#?.db")
    assert await log.end() == 2
    await log.close()
