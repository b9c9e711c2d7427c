"""The contract of every log, as dmq/log.py states it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from dmq import (
    FILLER,
    Cursor,
    Entry,
    FencedError,
    Log,
    LogCorruptError,
    LogError,
    LogRegressedError,
    Record,
    RecordTooLargeError,
    TrimmedError,
    UnknownVersionError,
    encode,
)
from dmq.log import CURSOR_NOTE_BYTES_MAX
from tests.contract.log_backends import RECORD_BYTES_MAX, Backend

DEADLINE_S = 10.0


@pytest.fixture
async def log(backend: Backend) -> AsyncIterator[Log]:
    log = await backend.open()
    yield log
    await log.close()


def records(*keys: str) -> list[Record]:
    return [Record("test", key) for key in keys]


def keys(entries: list[Entry]) -> list[str]:
    return [entry.record.key for entry in entries]


async def read_all(log: Log, start: int | None = None) -> list[Entry]:
    entries: list[Entry] = []
    offset = await log.start() if start is None else start
    while found := await log.read(offset):
        entries += [entry for entry in found if entry.record.kind != FILLER]
        offset = found[-1].offset + 1
    return entries


# Appending and reading


async def test_log_that_is_new_is_empty(log: Log) -> None:
    assert await log.start() == await log.end()
    assert await log.read(await log.end()) == []
    assert await log.cursors() == {}


async def test_append_of_records_gives_offsets_at_which_they_are_read_in_order(log: Log) -> None:
    offsets = await log.append(records("a", "b")) + await log.append(records("c"))
    entries = await read_all(log)
    assert offsets == sorted(set(offsets))
    assert [entry.offset for entry in entries] == offsets
    assert keys(entries) == ["a", "b", "c"]
    assert await log.end() > offsets[-1]


async def test_append_of_no_records_returns_no_offsets(log: Log) -> None:
    assert await log.append([]) == []
    assert await log.read(await log.end()) == []


async def test_append_by_many_tasks_keeps_the_records_of_each_call_adjacent(log: Log) -> None:
    async def writer(name: int) -> None:
        for number in range(20):
            await log.append(records(*(f"{name} {number} {part}" for part in range(3))))

    await asyncio.gather(*(writer(name) for name in range(16)))
    found = [tuple(map(int, key.split())) for key in keys(await read_all(log))]
    batches = [tuple(found[index : index + 3]) for index in range(0, len(found), 3)]
    for batch in batches:
        name, number, _ = batch[0]
        assert batch == tuple((name, number, part) for part in range(3))
    for name in range(16):
        assert [batch[0][1] for batch in batches if batch[0][0] == name] == list(range(20))


async def test_append_is_seen_by_other_handles_in_the_same_order(
    backend: Backend, log: Log
) -> None:
    other = await backend.open()
    await log.append(records("a"))
    await other.append(records("b"))
    assert await read_all(log) == await read_all(other)
    assert keys(await read_all(log)) == ["a", "b"]
    await other.close()


async def test_append_of_any_text_and_bytes_is_read_back_equal(log: Log) -> None:
    record = Record(
        kind="größe",
        key='naïve 😀 \u0000 \\ "',
        payload=bytes(range(256)),
    )
    await log.append([record])
    (entry,) = await read_all(log)
    assert entry.record == record


async def test_append_of_eight_mebibytes_is_read_back_equal(log: Log) -> None:
    payload = bytes(range(256)) * (8 << 12)
    assert len(payload) == 8 << 20
    await log.append([Record("rows", "big", payload=payload), Record("sql", "small")])
    big, small = await read_all(log)
    assert big.record.payload == payload
    assert small.record.key == "small"


async def test_large_record_is_read_whole_from_each_start_offset(log: Log) -> None:
    (first,) = await log.append([Record("test", "before")])
    large = Record("rows", "large", payload=bytes(range(256)) * (5 << 12))
    offsets = await log.append([large, Record("test", "beside"), large])
    (last,) = await log.append([Record("test", "after")])
    for start in range(first, last + 1):
        entries = await read_all(log, start)
        expected = [offset for offset in (first, *offsets, last) if offset >= start]
        assert [entry.offset for entry in entries] == expected
        assert all(entry.record == large for entry in entries if entry.record.key == "large")


async def test_append_of_large_records_by_many_tasks_is_read_back_whole_and_in_order(
    log: Log,
) -> None:
    async def writer(name: int) -> list[tuple[int, str]]:
        records = [Record("test", f"{name} {n}", payload=bytes([name]) * (2 << 20)) for n in (1, 2)]
        offsets = await log.append(records)
        assert offsets == sorted(offsets)
        return [(offset, record.key) for offset, record in zip(offsets, records, strict=True)]

    appended = await asyncio.gather(*(writer(name) for name in range(4)))
    entries = await read_all(log)
    assert [(entry.offset, entry.record.key) for entry in entries] == sorted(
        pair for pairs in appended for pair in pairs
    )
    assert all(set(entry.record.payload) == {int(entry.record.key.split()[0])} for entry in entries)


async def test_append_of_a_filler_is_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="the log's own"):
        await log.append([Record(FILLER)])


async def test_append_of_an_oversize_record_is_refused_and_appends_nothing(log: Log) -> None:
    with pytest.raises(RecordTooLargeError, match="nothing was appended"):
        await log.append([Record("test", "fits"), Record("test", payload=bytes(RECORD_BYTES_MAX))])
    assert await read_all(log) == []


async def test_append_of_a_record_at_the_size_limit_succeeds(log: Log) -> None:
    room = RECORD_BYTES_MAX - len(encode(Record("test")))
    await log.append([Record("test", payload=bytes(room))])
    with pytest.raises(RecordTooLargeError):
        await log.append([Record("test", payload=bytes(room + 1))])


async def test_append_that_is_cancelled_leaves_other_appends_untouched(log: Log) -> None:
    tasks = [asyncio.create_task(log.append(records(f"{n} a", f"{n} b"))) for n in range(30)]
    for task in tasks[::3]:
        task.cancel()
    await asyncio.wait(tasks[1::3], timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[2::3]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    found = {entry.offset: entry.record.key for entry in await read_all(log)}
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, list):
            assert [found[offset] for offset in outcome] == [f"{number} a", f"{number} b"]
        else:
            assert isinstance(outcome, asyncio.CancelledError)
            # There or not, but whole.
            assert (f"{number} a" in found.values()) == (f"{number} b" in found.values())
    assert all(isinstance(outcome, list) for outcome in outcomes[1::3])
    assert await log.append(records("after"))


# Limits of a read


async def test_read_returns_at_most_records_max_records(log: Log) -> None:
    offsets = await log.append(records(*"abcde"))
    assert keys(await log.read(offsets[1], records_max=2)) == ["b", "c"]


async def test_read_returns_at_most_bytes_max_bytes(log: Log) -> None:
    record = Record("test", payload=bytes(1000))
    offsets = await log.append([record] * 5)
    size = len(encode(record))
    assert len(await log.read(offsets[0], bytes_max=3 * size)) == 3
    assert len(await log.read(offsets[0], bytes_max=3 * size - 1)) == 2


async def test_read_with_limits_below_one_record_returns_one_record(log: Log) -> None:
    offsets = await log.append(records("a", "b"))
    assert keys(await log.read(offsets[0], bytes_max=0)) == ["a"]
    assert keys(await log.read(offsets[0], records_max=0)) == ["a"]


async def test_read_above_the_end_is_refused(log: Log) -> None:
    await log.append(records("a"))
    end = await log.end()
    with pytest.raises(LogRegressedError, match=str(end)):
        await log.read(end + 1)


# Waiting


async def test_wait_for_an_existing_record_returns_at_once(backend: Backend, log: Log) -> None:
    (offset,) = await log.append(records("a"))
    other = await backend.open()
    for handle in (log, other):
        assert await handle.wait(offset, DEADLINE_S)
        assert await handle.wait(offset, 0)
    assert not await log.wait(await log.end(), 0)
    await other.close()


async def test_wait_without_a_record_returns_false_at_its_deadline(log: Log) -> None:
    end = await log.end()
    began = time.monotonic()
    assert not await log.wait(end, 0.25)
    assert 0.24 <= time.monotonic() - began < DEADLINE_S


async def test_wait_is_woken_by_an_append_of_the_same_handle_up_to_its_offset(log: Log) -> None:
    end = await log.end()
    waits = [asyncio.create_task(log.wait(end, DEADLINE_S)) for _ in range(5)]
    beyond = asyncio.create_task(log.wait(end + 1, DEADLINE_S))
    await asyncio.sleep(0)
    (offset,) = await log.append(records("a"))
    assert all(await asyncio.gather(*waits))
    assert await log.read(offset)
    assert not beyond.done()
    await log.append(records("b"))
    assert await beyond


async def test_wait_is_woken_by_an_append_of_another_handle(backend: Backend, log: Log) -> None:
    other = await backend.open()
    end = await log.end()
    waiting = asyncio.create_task(log.wait(end, DEADLINE_S))
    await other.append(records("a"))
    assert await waiting
    assert keys(await log.read(end)) == ["a"]
    await other.close()


async def test_wait_that_is_cancelled_leaves_other_waits_running(log: Log) -> None:
    end = await log.end()
    cancelled, stays = (asyncio.create_task(log.wait(end, DEADLINE_S)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cancelled
    await log.append(records("a"))
    assert await stays


# Cursors


async def test_cursor_that_was_never_committed_is_none(log: Log) -> None:
    assert await log.load_cursor("a") is None


async def test_cursor_of_the_last_commit_is_loaded_with_its_note_for_each_reader(
    backend: Backend, log: Log
) -> None:
    note = "n" * CURSOR_NOTE_BYTES_MAX
    await log.commit_cursor("a", Cursor(7))
    await log.commit_cursor("b", Cursor(9, "b's"))
    await log.commit_cursor("a", Cursor(5, note))
    other = await backend.open()
    for handle in (log, other):
        assert await handle.load_cursor("a") == Cursor(5, note)
        assert await handle.cursors() == {"a": Cursor(5, note), "b": Cursor(9, "b's")}
    await other.close()


async def test_cursor_is_kept_when_the_log_is_closed_and_opened_again(backend: Backend) -> None:
    log = await backend.open()
    await log.commit_cursor("ä b", Cursor(3, "note"))
    await log.close()
    log = await backend.open()
    assert await log.load_cursor("ä b") == Cursor(3, "note")
    await log.close()


async def test_cursor_commit_of_a_replaced_process_is_refused_and_changes_nothing(
    backend: Backend,
) -> None:
    old, new = await backend.open(), await backend.open()
    await old.commit_cursor("a", Cursor(3, "old", epoch=1))
    await new.commit_cursor("a", Cursor(2, "new", epoch=5))
    with pytest.raises(FencedError, match="replaced"):
        await old.commit_cursor("a", Cursor(9, "late", epoch=1))
    await old.commit_cursor("b", Cursor(1, epoch=0))
    assert await old.load_cursor("a") == Cursor(2, "new", epoch=5)
    await new.commit_cursor("a", Cursor(4, "newer", epoch=5))
    assert await old.load_cursor("a") == Cursor(4, "newer", epoch=5)
    await old.close()
    await new.close()


async def test_identity_is_the_same_for_all_handles(backend: Backend) -> None:
    first, second = await backend.open(), await backend.open()
    assert await first.identity() == await second.identity() != ""
    await first.close()
    await second.close()


@pytest.mark.parametrize(
    "cursor", [Cursor(-1), Cursor(1, "é"), Cursor(1, "n" * (CURSOR_NOTE_BYTES_MAX + 1))]
)
async def test_cursor_beyond_the_limits_of_all_logs_is_refused(log: Log, cursor: Cursor) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await log.commit_cursor("a", cursor)
    assert await log.load_cursor("a") is None


# Trimming


async def test_trim_refuses_reads_below_its_offset_and_keeps_records_above_it(
    backend: Backend, log: Log
) -> None:
    offsets = await log.append(records(*"abcd"))
    await log.trim(offsets[2])
    other = await backend.open()
    for handle in (log, other):
        assert await handle.start() == offsets[2]
        assert keys(await handle.read(offsets[2])) == ["c", "d"]
        for offset in offsets[:2]:
            with pytest.raises(TrimmedError, match=str(offsets[2])):
                await handle.read(offset)
    await other.close()


async def test_trim_to_the_same_or_a_lower_offset_changes_nothing(log: Log) -> None:
    offsets = await log.append(records(*"abcd"))
    for before in (offsets[2], offsets[2], offsets[1], 0):
        await log.trim(before)
    assert await log.start() == offsets[2]
    assert keys(await read_all(log)) == ["c", "d"]


async def test_trim_beyond_the_end_is_refused(log: Log) -> None:
    await log.append(records("a"))
    with pytest.raises(LogRegressedError):
        await log.trim(await log.end() + 1)
    assert keys(await read_all(log)) == ["a"]


async def test_trim_of_the_whole_log_never_reuses_an_offset(backend: Backend) -> None:
    log = await backend.open()
    before = await log.append(records(*"abc"))
    await log.trim(await log.end())
    assert await log.read(await log.end()) == []
    await log.close()
    log = await backend.open()
    assert await log.start() == await log.end() > before[-1]
    after = await log.append(records("d"))
    assert after[0] > before[-1]
    assert keys(await read_all(log)) == ["d"]
    await log.close()


async def test_trim_keeps_all_parts_of_a_large_record_above_its_offset(
    backend: Backend, log: Log
) -> None:
    large = Record("rows", "large", payload=bytes(range(256)) * (3 << 12))
    await log.append([Record("test", "before")])
    (offset,) = await log.append([large])
    (after,) = await log.append([Record("test", "after")])
    await log.trim(offset)
    other = await backend.open()
    for handle in (log, other):
        assert await handle.start() <= offset
        (entry, _) = await read_all(handle, offset)
        assert (entry.offset, entry.record) == (offset, large)
    await log.trim(after)
    assert await log.start() == after
    with pytest.raises(TrimmedError):
        await log.read(offset)
    await other.close()


# Records that cannot be read


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (encode(Record("test"))[:2] + b"\x02" + encode(Record("test"))[3:], UnknownVersionError),
        (b"", LogCorruptError),
        (b"not a record at all", LogCorruptError),
        (encode(Record("test"))[:-3], LogCorruptError),
    ],
    ids=["newer", "empty", "foreign", "cut"],
)
async def test_read_of_an_unreadable_record_names_its_offset_and_others_stay_readable(
    backend: Backend, log: Log, stored: bytes, error: type[LogError]
) -> None:
    (before,) = await log.append(records("before"))
    offset = await backend.append_stored(stored)
    (after,) = await log.append(records("after"))
    assert keys(await log.read(before)) == ["before"]
    for _ in range(2):
        with pytest.raises(error, match=f"offset {offset} ") as caught:
            await log.read(offset)
        assert type(caught.value) is error
    assert keys(await log.read(after)) == ["after"]


# Closing


async def test_close_lets_running_appends_finish(backend: Backend) -> None:
    log = await backend.open()
    appends = [asyncio.create_task(log.append(records(str(n)))) for n in range(10)]
    await asyncio.sleep(0)
    await log.close()
    offsets = [offset for found in await asyncio.gather(*appends) for offset in found]
    log = await backend.open()
    assert [entry.offset for entry in await read_all(log)] == offsets
    await log.close()


async def test_close_ends_waits_and_refuses_further_calls(backend: Backend) -> None:
    log = await backend.open()
    waiting = asyncio.create_task(log.wait(0, DEADLINE_S))
    await asyncio.sleep(0)
    await log.close()
    await log.close()
    with pytest.raises(LogError, match="closed"):
        await waiting
    for use in (log.append([]), log.append(records("a")), log.read(0), log.end(), log.trim(0)):
        with pytest.raises(LogError, match="closed"):
            await use
