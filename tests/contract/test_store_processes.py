"""The contract of a key-value store that several processes share, with real processes."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from tests.contract.processes import DEADLINE_S, line, lines_to_end, process
from tests.contract.store_backends import StoreBackend
from tests.contract.store_process import numbered

SCRIPT = "store_process.py"


@pytest.mark.parametrize("size", [100, 3 << 20])
async def test_put_of_a_writer_killed_midstream_keeps_each_acknowledged_value_whole(
    shared_store_backend: StoreBackend, size: int
) -> None:
    store = await shared_store_backend.open()
    for name in ("first", "second"):
        async with process(SCRIPT, "put", shared_store_backend.url, name, str(size)) as writer:
            lines = [await line(writer) for _ in range(10 if size > 1000 else 100)]
            writer.kill()
            lines += [f"{text}\n" for text in await lines_to_end(writer)]
        # The last line may be cut off by the kill.
        acknowledged = [int(text) for text in lines[:-1]]
        for handle in (store, await shared_store_backend.open()):
            found = await handle.scan(f"{name}/")
            last = int(found.pop(f"{name}/last").value.split(b" ")[0])
            assert set(acknowledged) <= {int(key.split("/")[1]) for key in found}
            assert last >= acknowledged[-1]
            for key, kept in found.items():
                assert kept.value == numbered(int(key.split("/")[1]), size)
            if handle is not store:
                await handle.close()
    await store.close()


async def test_put_of_another_process_is_read_as_soon_as_it_has_returned(
    shared_store_backend: StoreBackend,
) -> None:
    store = await shared_store_backend.open()
    async with process(SCRIPT, "answer", shared_store_backend.url) as writer:
        assert await line(writer) == "ready\n"
        assert writer.stdin is not None
        for number in range(50):
            writer.stdin.write(b"\n")
            revision = int((await line(writer)).split()[0])
            kept = await store.get("answer")
            assert kept is not None
            assert (kept.value, kept.revision) == (b"%d" % number, revision)
    await store.close()


async def test_wait_is_woken_at_once_by_a_put_of_another_process(
    shared_store_backend: StoreBackend,
) -> None:
    store = await shared_store_backend.open()
    delays_s: list[float] = []
    async with process(SCRIPT, "answer", shared_store_backend.url) as writer:
        assert await line(writer) == "ready\n"
        assert writer.stdin is not None
        for number in range(20):
            revision = await store.revision()
            waiting = asyncio.create_task(store.wait("ans", revision, DEADLINE_S))
            assert not await store.wait("ans", revision, 0.12 if number % 2 else 0.01)
            writer.stdin.write(b"\n")
            assert await waiting
            woken_at = time.monotonic()
            delays_s.append(woken_at - float((await line(writer)).split()[1]))
    # Far below the deadline, which a busy machine does not change.
    assert statistics.median(delays_s) < 0.5
    await store.close()
