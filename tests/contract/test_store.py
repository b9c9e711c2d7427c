"""The contract of every key-value store, as dmq/key_value.py states it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from dmq import Kept, KeyValueStore, LogError, ValueTooLargeError
from dmq.key_value import KEY_BYTES_MAX, VALUE_BYTES_MAX
from dmq.waiting import CHANGES_MAX
from tests.contract.store_backends import StoreBackend

DEADLINE_S = 10.0
LARGE = 5 << 20


@pytest.fixture
async def store(store_backend: StoreBackend) -> AsyncIterator[KeyValueStore]:
    store = await store_backend.open()
    yield store
    await store.close()


@pytest.fixture
async def other(store_backend: StoreBackend) -> AsyncIterator[KeyValueStore]:
    store = await store_backend.open()
    yield store
    await store.close()


def value_of(kept: Kept | None) -> bytes | None:
    return None if kept is None else kept.value


async def values(store: KeyValueStore, prefix: str) -> dict[str, bytes]:
    return {key: kept.value for key, kept in (await store.scan(prefix)).items()}


# Putting, getting and deleting


async def test_store_that_is_new_is_empty(store: KeyValueStore) -> None:
    assert await store.get("a") is None
    assert await store.scan("") == {}
    assert await store.keys("") == []
    assert await store.revision() == 0


async def test_put_is_read_back_and_a_later_put_replaces_it(store: KeyValueStore) -> None:
    first = await store.put("a", b"one")
    assert await store.get("a") == Kept(b"one", first)
    second = await store.put("a", b"two")
    assert await store.get("a") == Kept(b"two", second)
    assert first < second == await store.revision()


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256))])
async def test_put_of_any_bytes_is_read_back_equal(store: KeyValueStore, value: bytes) -> None:
    await store.put("a", value)
    assert value_of(await store.get("a")) == value


async def test_delete_removes_a_key_that_can_be_put_again(store: KeyValueStore) -> None:
    await store.put("a", b"one")
    await store.delete("a")
    assert await store.get("a") is None
    assert await store.keys("") == []
    await store.put("a", b"two")
    assert value_of(await store.get("a")) == b"two"


async def test_delete_of_an_absent_key_does_nothing(store: KeyValueStore) -> None:
    await store.delete("a")
    assert await store.get("a") is None


@pytest.mark.parametrize("key", ["größe/😀", 'a b"\\%_?*[', "x" * KEY_BYTES_MAX, "\x01", "~"])
async def test_put_under_a_key_of_any_text_is_kept(store: KeyValueStore, key: str) -> None:
    await store.put(key, b"1")
    assert value_of(await store.get(key)) == b"1"
    assert await values(store, key) == {key: b"1"}


@pytest.mark.parametrize("key", ["", "x" * (KEY_BYTES_MAX + 1), "é" * KEY_BYTES_MAX, "a\0b"])
async def test_put_under_an_invalid_key_is_refused(store: KeyValueStore, key: str) -> None:
    with pytest.raises(ValueError, match="a key is text"):
        await store.put(key, b"1")
    assert await store.scan("") == {}


async def test_put_of_an_oversize_value_is_refused_and_changes_nothing(
    store: KeyValueStore,
) -> None:
    await store.put("a", b"one")
    with pytest.raises(ValueTooLargeError, match="split it"):
        await store.put("a", bytes(VALUE_BYTES_MAX + 1))
    assert value_of(await store.get("a")) == b"one"


async def test_puts_of_many_tasks_at_once_are_all_kept(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    async def writer(name: int) -> None:
        for number in range(20):
            await (store, other)[name % 2].put(f"{name}/{number}", b"%d" % number)

    await asyncio.gather(*(writer(name) for name in range(16)))
    found = await store.scan("")
    expected = {f"{name}/{number}": b"%d" % number for name in range(16) for number in range(20)}
    assert {key: kept.value for key, kept in found.items()} == expected
    assert len({kept.revision for kept in found.values()}) == len(expected)
    for name in range(16):
        own = [found[f"{name}/{number}"].revision for number in range(20)]
        assert own == sorted(own)
    assert await other.scan("") == found


# Large values


async def test_put_of_large_values_is_read_back_equal(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    large = random.Random(1).randbytes(LARGE)
    await store.put("blob/a", large)
    await store.put("small", b"1")
    for each in (store, other):
        assert value_of(await each.get("blob/a")) == large
        assert await values(each, "") == {"blob/a": large, "small": b"1"}
        assert await each.keys("blob/") == ["blob/a"]


async def test_put_of_32_mebibytes_is_read_back_equal(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    large = random.Random(2).randbytes(1 << 20) * 32
    await store.put("blob", large)
    assert value_of(await other.get("blob")) == large


async def test_put_over_a_large_value_leaves_the_new_value(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    for number in range(3):
        large = bytes([number]) * (LARGE + number)
        await store.put("a", large)
        assert value_of(await other.get("a")) == large
    await other.put("a", b"small")
    assert value_of(await store.get("a")) == b"small"
    await store.put("a", b"x" * LARGE)
    await other.delete("a")
    assert await store.get("a") is None


async def test_puts_of_large_values_at_once_are_read_back_whole(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    sent = {f"b/{n}": bytes([n]) * (2 << 20) for n in range(8)}
    await asyncio.gather(*((store, other)[n % 2].put(f"b/{n}", sent[f"b/{n}"]) for n in range(8)))
    assert await values(store, "b/") == sent
    assert await values(other, "b/") == sent


# Scanning


async def test_scan_of_a_prefix_returns_the_keys_below_it_in_order(store: KeyValueStore) -> None:
    keys = ["a", "a/1", "a/10", "a/2", "a0", "b/1", "a/é", "a/😀", "a/\uffff", "A/1"]
    for key in keys:
        await store.put(key, key.encode())
    below = sorted(key for key in keys if key.startswith("a/"))
    assert list(await store.scan("a/")) == below == await store.keys("a/")
    assert await values(store, "a/") == {key: key.encode() for key in below}
    assert await store.keys("") == sorted(keys)
    assert await store.scan("c") == {}


async def test_scan_during_writes_shows_one_moment(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    """Each key is put after the one before it, so a scan with one key has all before it."""

    async def write() -> None:
        for number in range(100):
            await other.put(f"k/{number:03}", b"%d" % number)

    writing = asyncio.create_task(write())
    while not writing.done():
        found = await values(store, "k/")
        assert list(found) == [f"k/{number:03}" for number in range(len(found))]
        await asyncio.sleep(0)
    await writing
    assert len(await store.keys("k/")) == 100


# Several handles


async def test_put_is_seen_by_all_handles_at_once(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    for number in range(50):
        writer, reader = (store, other) if number % 2 else (other, store)
        revision = await writer.put("a", b"%d" % number)
        assert await reader.get("a") == Kept(b"%d" % number, revision)
        assert await reader.revision() == revision
        await writer.put(f"s/{number}", b"")
        assert f"s/{number}" in await reader.scan("s/")
        await writer.delete("a")
        assert await reader.get("a") is None


async def test_claims_of_several_handles_at_once_have_one_first(
    store_backend: StoreBackend,
) -> None:
    handles = [await store_backend.open() for _ in range(3)]

    async def claim(number: int, name: int) -> str:
        handle = handles[name]
        await handle.put(f"claim/{number}/{name}", b"")
        found = await handle.scan(f"claim/{number}/")
        return min(found, key=lambda key: found[key].revision)

    for number in range(10):
        firsts = await asyncio.gather(*(claim(number, name) for name in range(3)))
        assert len(set(firsts)) == 1
    for handle in handles:
        await handle.close()


async def test_open_again_finds_all_stored_values(store_backend: StoreBackend) -> None:
    first = await store_backend.open()
    large = random.Random(3).randbytes(LARGE)
    await first.put("gone", b"x")
    await first.put("a", b"one")
    await first.put("blob", large)
    await first.delete("gone")
    expected = await first.scan("")
    revision = await first.revision()
    await first.close()
    second = await store_backend.open()
    assert await second.scan("") == expected
    assert list(expected) == ["a", "blob"]
    assert await second.revision() >= expected["blob"].revision
    assert await second.put("b", b"") > revision
    await second.close()


# Waiting


async def test_wait_without_a_change_returns_false_at_its_deadline(store: KeyValueStore) -> None:
    await store.put("a/1", b"")
    revision = await store.revision()
    assert not await store.wait("a/", revision, 0)
    assert not await store.wait("a/", revision, 0.05)


async def test_wait_for_an_earlier_change_returns_at_once(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    revision = await store.revision()
    await other.put("a/1", b"")
    assert await store.wait("a/", revision, DEADLINE_S)
    assert await store.wait("a/", revision, 0)


@pytest.mark.parametrize("own", [True, False])
async def test_wait_is_woken_by_a_put_below_its_prefix(
    store: KeyValueStore, other: KeyValueStore, own: bool
) -> None:
    revision = await store.revision()
    waiting = asyncio.create_task(store.wait("a/", revision, DEADLINE_S))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await (store if own else other).put("a/1", b"")
    assert await waiting


async def test_wait_is_woken_by_a_delete_below_its_prefix(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    await store.put("a/1", b"")
    revision = await store.revision()
    waiting = asyncio.create_task(store.wait("a/", revision, DEADLINE_S))
    await asyncio.sleep(0.05)
    await other.delete("a/1")
    assert await waiting


async def test_wait_is_not_ended_by_a_change_outside_its_prefix(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    revision = await store.revision()
    waiting = asyncio.create_task(store.wait("a/", revision, DEADLINE_S))
    await other.put("b/1", b"")
    await store.put("a", b"")
    assert not await store.wait("a/", revision, 0.2)
    assert not waiting.done()
    await other.put("a/1", b"")
    assert await waiting


async def test_wait_in_a_loop_misses_no_change(store: KeyValueStore, other: KeyValueStore) -> None:
    """As in the contract: read the revision, look, wait for a change after it."""
    seen: list[int] = []

    async def watch() -> None:
        while True:
            revision = await store.revision()
            if kept := await store.get("w/n"):
                seen.append(int(kept.value))
                if seen[-1] == 99:
                    return
            assert await store.wait("w/", revision, DEADLINE_S)

    async def write() -> None:
        for number in range(100):
            await other.put("w/n", b"%d" % number)

    await asyncio.wait_for(asyncio.gather(watch(), write()), 3 * DEADLINE_S)
    assert seen == sorted(seen)


async def test_wait_after_a_very_old_revision_notices_the_change(
    store: KeyValueStore, other: KeyValueStore
) -> None:
    revision = await store.revision()
    await other.put("a/1", b"")
    for first in range(0, CHANGES_MAX + 64, 64):
        await asyncio.gather(*(other.put(f"b/{n}", b"") for n in range(first, first + 64)))
    assert await store.wait("a/", revision, DEADLINE_S)


# The end


async def test_close_ends_waits_and_refuses_further_calls(store_backend: StoreBackend) -> None:
    store = await store_backend.open()
    waiting = asyncio.create_task(store.wait("a", await store.revision(), DEADLINE_S))
    await asyncio.sleep(0.02)
    await store.close()
    await store.close()
    with pytest.raises(LogError, match="closed"):
        await waiting
    for call in (store.get("a"), store.put("a", b""), store.scan(""), store.revision()):
        with pytest.raises(LogError, match="closed"):
            await call


async def test_close_lets_running_puts_finish(store_backend: StoreBackend) -> None:
    store = await store_backend.open()
    puts = [asyncio.create_task(store.put(f"a/{n}", b"x" * 1000)) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)
    again = await store_backend.open()
    assert len(await again.keys("a/")) == 50
    await again.close()
