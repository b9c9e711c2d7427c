"""The contract of a log that several processes share, with real processes."""

from __future__ import annotations

import asyncio
import statistics
import time

from dmq import Entry, Log
from tests.contract.log_backends import Backend
from tests.contract.processes import DEADLINE_S, line, lines_to_end, process

SCRIPT = "log_process.py"


async def read_all(log: Log) -> list[Entry]:
    entries: list[Entry] = []
    while found := await log.read(entries[-1].offset + 1 if entries else await log.start()):
        entries += found
    return entries


def acknowledged(name: str, lines: list[str]) -> dict[int, str]:
    """Return the keys that the log acknowledged to the writer, by offset."""
    found: dict[int, str] = {}
    for text in lines:
        number, *offsets = text.split()
        found |= {int(offset): f"{name}-{number}-{part}" for part, offset in enumerate(offsets)}
    return found


async def test_append_of_a_writer_killed_midstream_keeps_each_acknowledged_record(
    shared_backend: Backend,
) -> None:
    log = await shared_backend.open()
    expected: dict[int, str] = {}
    for name in ("first", "second", "third"):
        async with process(SCRIPT, "write", shared_backend.url, name, "0") as writer:
            lines = [await line(writer) for _ in range(50)]
            writer.kill()
            lines += [text + "\n" for text in await lines_to_end(writer)]
        # A line that the kill cut off may lack digits; every whole one counts.
        expected |= acknowledged(name, [text for text in lines if len(text.split()) == 4][:-1])
    entries = await read_all(log)
    stored = {entry.offset: entry.record.key for entry in entries}
    assert expected.items() <= stored.items()
    if shared_backend.appends_whole:
        # What was under way at a kill is there as a whole or not at all.
        assert len(entries) % 3 == 0
    await log.close()


async def test_append_by_many_processes_gives_one_order(shared_backend: Backend) -> None:
    log = await shared_backend.open()
    async with (
        process(SCRIPT, "write", shared_backend.url, "a", "60") as a,
        process(SCRIPT, "write", shared_backend.url, "b", "60") as b,
        process(SCRIPT, "write", shared_backend.url, "c", "60") as c,
        process(SCRIPT, "write", shared_backend.url, "d", "60") as d,
    ):
        outputs = await asyncio.gather(*(lines_to_end(child) for child in (a, b, c, d)))
    expected: dict[int, str] = {}
    for name, lines in zip("abcd", outputs, strict=True):
        assert len(lines) == 60
        expected |= acknowledged(name, lines)
    entries = await read_all(log)
    assert {entry.offset: entry.record.key for entry in entries} == expected
    assert len(entries) == 4 * 60 * 3
    for first in range(0, len(entries), 3):
        batch = [entry.record.key.rsplit("-", 1)[0] for entry in entries[first : first + 3]]
        assert len(set(batch)) == 1 or not shared_backend.appends_whole
    await log.close()


async def test_wait_is_woken_within_milliseconds_by_an_append_of_another_process(
    shared_backend: Backend,
) -> None:
    log = await shared_backend.open()
    delays_s: list[float] = []
    async with process(SCRIPT, "answer", shared_backend.url) as writer:
        assert await line(writer) == "ready\n"
        assert writer.stdin is not None
        for number in range(20):
            end = await log.end()
            waiting = asyncio.create_task(log.wait(end, DEADLINE_S))
            # Longer than any spell of closer attention after the record before.
            assert not await log.wait(end, 0.12 if number % 2 else 0.01)
            writer.stdin.write(b"\n")
            assert await waiting
            woken_at = time.monotonic()
            delays_s.append(woken_at - float(await line(writer)))
    assert statistics.median(delays_s) < 0.02
    await log.close()
