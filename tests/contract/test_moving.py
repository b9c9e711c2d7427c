"""Tests of moving a log between backends: the export file, and the refusals."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dmq import (
    FILLER,
    Cursor,
    KeyValueStore,
    Log,
    LogCorruptError,
    LogError,
    MemoryKeys,
    MemoryKeyValueStore,
    MemoryLog,
    MemoryStore,
    MovableLog,
    MovableStore,
    Record,
    moving,
    open_both,
    open_log,
    open_store,
)
from dmq.key_value import MoveState, Origin, check_usable, origin_of, remember
from dmq.log import FILLER_STORED
from dmq.moving import Contents, check_new, export_log, import_log, read_contents
from tests.contract.log_backends import KAFKA_OPTIONS

BACKENDS = ("memory", "sqlite", "kafka")
SOURCES = ("memory", "sqlite", pytest.param("kafka", marks=pytest.mark.thorough))
LARGE = os.urandom(3 << 20)
"""Larger than a message of Kafka may be."""
OPERATIONS_BYTES_MAX = 64 << 20


class Place:
    """The place of a log and its store, before or after they exist."""

    def __init__(self, kind: str, folder: Path, servers: str = "") -> None:
        self.kind = kind
        name = f"log-{uuid.uuid4().hex}"
        self.url = f"kafka://{servers}/{name}" if kind == "kafka" else f"sqlite://{folder / name}"
        self._memory = MemoryStore(identity=uuid.uuid4().hex), MemoryKeys()

    async def open(self, *, checked: bool = True) -> tuple[MovableLog, MovableStore]:
        """Return handles; ``checked``: opened as a HAProc opens them."""
        if self.kind == "memory":
            log, store = MemoryLog(self._memory[0]), MemoryKeyValueStore(self._memory[1])
            found = await origin_of(log, store)
            if checked:
                check_usable("memory:", found)
                log.known_as = found.identity
            return log, store
        if checked:
            return await open_both(
                self.url, record_bytes_max=OPERATIONS_BYTES_MAX, kafka=KAFKA_OPTIONS
            )
        return (
            await open_log(self.url, kafka=KAFKA_OPTIONS),
            await open_store(self.url, kafka=KAFKA_OPTIONS),
        )


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request, tmp_path)


@pytest.fixture(params=BACKENDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request, tmp_path)


def _place(request: pytest.FixtureRequest, folder: Path) -> Place:
    servers = request.getfixturevalue("kafka_servers") if request.param == "kafka" else ""
    return Place(request.param, folder, servers)


async def closed(*handles: Any) -> None:
    for handle in handles:
        await handle.close()


async def filled(place: Place) -> None:
    """Fill a log with records of all kinds, cursors and keys; its start is trimmed."""
    log, store = await place.open()
    await log.append([Record("old", str(n)) for n in range(10)])
    await log.trim(7)
    await log.append([Record("large", "l", LARGE), Record("small", "s", b"\0\xff")])
    await log.append([Record("large", "m", LARGE[::-1])])
    await log.commit_cursor("a", Cursor(await log.end(), '{"v":1}', 5))
    await log.commit_cursor("b", Cursor(8, "", 0))
    # Not in the keys' order, and with gaps; the first change of the store is there still.
    await store.put("job/0", b"")
    await store.put("replaced", b"at first")
    await store.put("session/x", b"journal")
    await store.put("replaced", b"later")
    await store.put("gone", b"")
    await store.put("job/1", os.urandom(200_000))
    await store.put("job/2", b"")
    await store.delete("gone")
    await closed(log, store)


async def held(log: Log, store: KeyValueStore) -> dict[str, Any]:
    """Return all that readers can see, without fillers."""
    records, offset = {}, await log.start()
    while found := await log.read(offset):
        for entry in found:
            if entry.record.kind != FILLER:
                record = entry.record
                records[entry.offset] = record.kind, record.key, bytes(record.payload)
        offset = found[-1].offset + 1
    return {
        "identity": await log.identity(),
        "start": await log.start(),
        "records": records,
        "cursors": dict(await log.cursors()),
        "keys": {
            key: (kept.value, kept.revision)
            for key, kept in (await store.scan("")).items()
            if not key.startswith("dmq/")
        },
    }


async def moved(source: Place, target: Place, file: Path) -> Contents:
    log, store = await source.open()
    contents = await export_log(log, store, file)
    await closed(log, store)
    log, store = await target.open(checked=False)
    assert await import_log(file, log, store) == contents
    await closed(log, store)
    return contents


async def test_log_that_was_moved_has_equal_content_and_accepts_new_records(
    source: Place, target: Place, tmp_path: Path
) -> None:
    await filled(source)
    file = tmp_path / "ring.dmq"
    contents = await moved(source, target, file)
    old, new = await source.open(), await target.open()
    before, after = await held(*old), await held(*new)
    assert after == before
    assert before["start"] == contents.start == 7
    assert (contents.cursors, contents.keys) == (2, 5)
    assert [kind for kind, *_ in before["records"].values()].count("large") == 2
    assert file.stat().st_mode & 0o077 == 0

    log, store = new
    assert await store.put("job/3", b"") > await old[1].revision()
    await store.delete("job/3")
    assert await log.end() >= contents.end
    (offset,) = await log.append([Record("new", "n", LARGE)])
    assert offset >= contents.end
    await log.commit_cursor("b", Cursor(offset, "", 9))
    # What was stored far from its place is found also once all before it is gone.
    large = min(offset for offset, record in after["records"].items() if record[0] == "large")
    await log.trim(large)
    assert await log.start() <= large
    await closed(*new)
    again = await target.open()
    later = await held(*again)
    assert {at: r for at, r in later["records"].items() if at >= large} == {
        **{at: r for at, r in before["records"].items() if at >= large},
        offset: ("new", "n", LARGE),
    }
    assert later["identity"] == before["identity"]
    await closed(*old, *again)


async def test_log_that_was_moved_can_be_moved_again(tmp_path: Path, source: Place) -> None:
    await filled(source)
    second, third = Place("sqlite", tmp_path), Place("memory", tmp_path)
    await moved(source, second, tmp_path / "1")
    await moved(second, third, tmp_path / "2")
    first, last = await source.open(), await third.open()
    assert await held(*first) == await held(*last)
    await closed(*first, *last)


# Files that are refused


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    place = Place("memory", tmp_path)
    await filled(place)
    log, store = await place.open()
    await export_log(log, store, tmp_path / "ring.dmq")
    return tmp_path / "ring.dmq"


def content(file: Path) -> bytes:
    return file.read_bytes()


def names(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


@pytest.fixture
async def new() -> AsyncIterator[tuple[MovableLog, MovableStore]]:
    made = MemoryLog(MemoryStore()), MemoryKeyValueStore()
    yield made
    await closed(*made)


async def untouched(log: MovableLog, store: KeyValueStore) -> None:
    assert await log.end() == 0
    assert await store.revision() == 0


@pytest.mark.parametrize("left", [0, 9, 11, 1000, -40, -33, -32, -1])
async def test_import_of_a_truncated_file_is_refused_before_any_change(
    file: Path, new: tuple[MovableLog, MovableStore], left: int
) -> None:
    data = content(file)
    write(file, data[:left])
    with pytest.raises(LogCorruptError):
        await import_log(file, *new)
    await untouched(*new)


async def test_import_of_a_file_with_any_changed_byte_is_refused(
    file: Path, new: tuple[MovableLog, MovableStore]
) -> None:
    data = content(file)
    for at in (0, 12, 100, len(data) // 2, len(data) - 41, len(data) - 35, len(data) - 1):
        write(file, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(LogCorruptError):
            await import_log(file, *new)
    write(file, data + b"\0")
    with pytest.raises(LogCorruptError):
        await import_log(file, *new)
    await untouched(*new)
    write(file, data)
    await import_log(file, *new)


async def test_contents_of_a_file_that_is_no_export_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a text of more than forty bytes, which is no log at all")
    with pytest.raises(LogCorruptError, match="is not the export of a log"):
        read_contents(tmp_path / "x")


# Logs that are refused


async def test_import_into_a_used_log_or_store_is_refused(
    file: Path, new: tuple[MovableLog, MovableStore]
) -> None:
    log, store = new
    await store.put("session/x", b"")
    with pytest.raises(LogError, match="its store has 1 keys"):
        await import_log(file, log, store)
    await store.delete("session/x")
    await log.commit_cursor("a", Cursor())
    with pytest.raises(LogError, match="it has cursors of a"):
        await import_log(file, log, store)
    await log.append([Record("test")])
    with pytest.raises(LogError, match="offsets from 0 to 1"):
        await import_log(file, log, store)
    assert await log.end() == 1


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("step", ["begin_at", "refill", "put", "commit_cursor"])
async def test_import_that_was_killed_leaves_an_unusable_log(
    file: Path,
    new: tuple[MovableLog, MovableStore],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    log, store = new

    async def killed(*_: object) -> None:
        raise KilledError

    if step == "put":

        def some(path: Path) -> Iterator[Any]:
            yield from ()
            raise KilledError

        real = moving.frames
        calls = iter([real, real, some])
        monkeypatch.setattr(moving, "frames", lambda path: next(calls)(path))
    else:
        monkeypatch.setattr(log, step, killed)
    with pytest.raises(KilledError):
        await import_log(file, log, store)
    monkeypatch.undo()
    with pytest.raises(LogError, match=r"is not whole: haproc log import of ring\.dmq"):
        check_usable("url", await origin_of(log, store))
    with pytest.raises(LogError, match=r"was cut off\. Remove it and its store"):
        await import_log(file, log, store)


async def test_log_recreated_beside_an_old_store_has_no_origin(
    tmp_path: Path,
) -> None:
    place = Place("sqlite", tmp_path)
    log, store = await place.open()
    await remember(log, store, Origin(MoveState.HALF, by="x"))
    await closed(log, store)
    path = Path(place.url.removeprefix("sqlite://"))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    log, store = await place.open()
    assert await origin_of(log, store) == Origin()
    await closed(log, store)


async def test_log_that_was_left_is_refused_and_keeps_its_id_when_reopened(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    log, store = await place.open()
    await remember(log, store, Origin(MoveState.LEFT, "older", "to /x"))
    await closed(log, store)
    with pytest.raises(LogError, match="haproc log reopen"):
        await place.open()
    log, store = await place.open(checked=False)
    await remember(log, store, Origin(MoveState.WHOLE, "older"))
    await closed(log, store)
    log, store = await place.open()
    assert await log.identity() == "older"
    await closed(log, store)


# Exports that are refused


async def test_export_during_a_write_is_refused_and_leaves_no_file(
    source: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(source)
    log, store = await source.open()
    keys = store.keys

    async def written(prefix: str) -> list[str]:
        await log.append([Record("claim")])
        return await keys(prefix)

    monkeypatch.setattr(store, "keys", written)
    with pytest.raises(LogError, match="written to while it was exported"):
        await export_log(log, store, tmp_path / "ring.dmq")
    monkeypatch.undo()
    assert not names(tmp_path, "ring.dmq*")
    await export_log(log, store, tmp_path / "ring.dmq")
    with pytest.raises(LogError, match="is there already"):
        await export_log(log, store, tmp_path / "ring.dmq")
    await closed(log, store)


async def test_export_of_a_log_without_records_is_refused(
    new: tuple[MovableLog, MovableStore], tmp_path: Path
) -> None:
    with pytest.raises(LogError, match="nothing to export"):
        await export_log(*new, tmp_path / "ring.dmq")


# Where a log begins


async def test_log_that_is_new_can_begin_at_any_offset_once(target: Place) -> None:
    log, store = await target.open()
    await log.begin_at(0)
    assert (await log.start(), await log.end()) == (0, 0)
    await log.begin_at(12_345)
    await log.begin_at(12_345)
    assert (await log.start(), await log.end()) == (12_345, 12_345)
    assert await log.append([Record("test")]) == [12_345]
    with pytest.raises(LogError, match="cannot be made to begin at 12346"):
        await log.begin_at(12_346)
    with pytest.raises(LogError, match="cannot be made to begin at 5"):
        await log.begin_at(5)
    await closed(log, store)


async def test_kafka_begin_at_that_was_interrupted_is_continued(
    kafka_servers: str, tmp_path: Path
) -> None:
    place = Place("kafka", tmp_path, kafka_servers)
    log, store = await place.open()
    await log.refill(3, lambda: iter([(0, [FILLER_STORED] * 3)]))
    await log.begin_at(10)
    assert (await log.start(), await log.end()) == (10, 10)
    with pytest.raises(LogError, match="is not new"):
        await check_new(log, store)
    await closed(log, store)


async def test_kafka_topic_with_records_cannot_begin_at_another_offset(
    kafka_servers: str, tmp_path: Path
) -> None:
    log, store = await Place("kafka", tmp_path, kafka_servers).open()
    await log.append([Record("test")])
    with pytest.raises(LogError, match="holds records"):
        await log.begin_at(10)
    assert await log.start() == 0
    await closed(log, store)
