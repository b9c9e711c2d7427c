"""Promises of the key-value store in a file alone: its file, and the faults of it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from dmq import LogError, LogUnavailableError, Record, open_log, open_store
from dmq.key_value_sqlite import SqliteKeyValueStore

DEADLINE_S = 20.0


def url(folder: Path) -> str:
    return f"sqlite://{folder / 'log.db'}"


async def test_store_file_lies_beside_its_log_and_is_private(tmp_path: Path) -> None:
    log, store = await open_log(url(tmp_path)), await open_store(url(tmp_path))
    await asyncio.gather(log.append([Record("test")]), store.put("a", b"1"))
    assert stat.S_IMODE((tmp_path / "log.db-store").stat().st_mode) == 0o600
    await log.close()
    assert await store.get("a") is not None
    await store.close()


async def test_open_of_many_handles_at_once_creates_one_store(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(open_store(url(tmp_path)) for _ in range(6)))
    revisions = await asyncio.gather(*(s.put(f"{n}", b"") for n, s in enumerate(stores)))
    assert sorted(revisions) == [2, 3, 4, 5, 6, 7]
    for store in stores:
        assert len(await store.keys("")) == 6
        await store.close()


async def test_open_of_the_file_of_a_log_is_refused(tmp_path: Path) -> None:
    log = await open_log(f"sqlite://{tmp_path / 'x'}")
    await log.close()
    with pytest.raises(LogError, match="not a keyed store, but another program's"):
        await SqliteKeyValueStore.open(tmp_path / "x")


async def test_open_of_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    await store.close()
    db = sqlite3.connect(tmp_path / "log.db-store")
    db.execute("UPDATE meta SET value = 99 WHERE name = 'schema_version'")
    db.commit()
    db.close()
    with pytest.raises(LogError, match=r"schema version 99.*upgrade"):
        await open_store(url(tmp_path))


async def test_store_whose_file_was_removed_is_unavailable(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    await store.put("a", b"1")
    (tmp_path / "log.db-store").unlink()
    for call in (store.get("a"), store.put("a", b""), store.scan(""), store.revision()):
        with pytest.raises(LogUnavailableError, match="-store"):
            await call
    await store.close()


async def test_puts_of_one_loop_turn_are_one_transaction(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    before = await store.put("0", b"")
    db = sqlite3.connect(tmp_path / "log.db-store")
    writing = [asyncio.create_task(store.put(f"{n}", b"x")) for n in range(100)]
    seen = set()
    while not all(put.done() for put in writing):
        seen.add(db.execute("SELECT count(*) FROM kept").fetchone()[0])
        await asyncio.sleep(0)
    assert seen <= {1, 100}
    assert await store.revision() == before + 100
    db.close()
    await store.close()


async def test_delete_of_large_values_frees_their_space(tmp_path: Path) -> None:
    store = await open_store(url(tmp_path))
    for number in range(8):
        await store.put(f"{number}", os.urandom(4 << 20))
    for number in range(8):
        await store.delete(f"{number}")
    deadline = time.monotonic() + DEADLINE_S
    while (tmp_path / "log.db-store").stat().st_size > 16 << 20:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await store.close()


async def test_keys_are_answered_from_memory_until_another_handle_changes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = await open_store(url(tmp_path)), await open_store(url(tmp_path))
    assert isinstance(reading, SqliteKeyValueStore)
    await writing.put("a/1", b"")
    looks = 0
    of_file = reading._file.reader.keys

    def looked(prefix: bytes) -> list[str]:
        nonlocal looks
        looks += 1
        return of_file(prefix)

    monkeypatch.setattr(reading._file.reader, "keys", looked)
    monkeypatch.setattr(reading, "_clock", lambda: 0.0)
    for _ in range(10):
        assert await reading.keys("a/") == ["a/1"]
    assert looks == 1
    await writing.put("a/2", b"")
    assert await reading.keys("a/") == ["a/1", "a/2"]
    await writing.delete("a/1")
    assert await reading.keys("a/") == ["a/2"]
    assert looks == 3
    await reading.close()
    await writing.close()
