"""The time until a cluster that missed many UPDATEs by key on small tables serves again.

Two clusters with 8 tables of 10,000 rows. The UPDATEs are in the log as clients leave them there,
and one cluster holds what they come to: having it run them one by one would take a day. The other
one begins with all of them before it. It measures its replay, and copies the tables. In the end
the tables are held against each other.

``python -m bench.bench_catch_up [missed]`` (100,000 by default).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import haclient
from bench.bench_mix import COLUMNS, rows, update
from bench.draining import operation
from bench.report import Row, report
from bench.rings import past_ring, ring_of, status_of
from dmq import open_log
from haproc.replicate.records.operation import to_record
from haproc.replicate.records.progress import from_cursor, to_cursor
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing

MISSED: Final = 100_000
TABLES: Final = tuple(f"point{n}" for n in range(8))
ROWS: Final = 10_000
BAR_S: Final = 180.0
WAIT_S: Final = 900.0
AT_ONCE: Final = 2_000


def main() -> None:
    """Measure and report."""
    missed = int(sys.argv[1]) if len(sys.argv) > 1 else MISSED
    with ring_of(2, settings={"on_foreign_write": "ignore"}) as ring:
        report("catch_up", caught_up(ring, missed))


def caught_up(ring: LocalRing, missed: int) -> list[Row]:
    """Stop a cluster, give the other one UPDATEs, and time the return of the stopped one."""
    donor, name = ring.names
    asyncio.run(ring.up(warm=True))
    with haclient.connect(ring.urls) as connection:
        for table in TABLES:
            connection.execute(f"CREATE TABLE {table} {COLUMNS} USING delta")
            for start in range(0, ROWS, AT_ONCE):
                few = rows(range(start, start + AT_ONCE))
                connection.execute(f"INSERT INTO {table} VALUES {few}")
    for each in (name, donor):
        _wait_ready(ring, each)
        asyncio.run(ring.stop_haproc(each))
    _apply(ring, donor, missed)
    asyncio.run(_queue(ring, donor, missed))
    asyncio.run(ring.start_haproc(donor))
    serves_s, recovery = _return(ring, name)
    found = differences(asyncio.run(contents(ring.config, list(TABLES))))
    assert not found, found
    what = f"{missed:,} UPDATEs by key missed"
    expected = {key: recovery[key] for key in ("replay_s", "copy_s") if recovery[key] is not None}
    return [
        Row(f"{what}: from the HAProc's start to READY", "s", serves_s, "bar", BAR_S),
        Row(f"{what}: COPYING", "s", recovery["copying_s"]),
        *(Row(f"{what}: {key} as expected", "s", value) for key, value in expected.items()),
    ]


def statements(missed: int) -> list[str]:
    """Return the UPDATEs: each key of each table in turn."""
    return [update(TABLES[n % len(TABLES)], n // len(TABLES) % ROWS) for n in range(missed)]


def _apply(ring: LocalRing, donor: str, missed: int) -> None:
    """Bring the tables of a cluster to the state after all UPDATEs."""
    session = past_ring(ring.sparks[donor])
    for n, table in enumerate(TABLES):
        count = len(range(n, missed, len(TABLES)))
        session.sql(
            f"UPDATE {table} SET visits = {count // ROWS} + int(id < {count % ROWS}), "
            f"name = concat('seen ', id) WHERE id < {count}"
        ).collect()
    session.stop()


async def _queue(ring: LocalRing, donor: str, missed: int) -> None:
    """Append the UPDATEs to the log, and set the donor's cursor to their end."""
    log = await open_log(ring.config.log)
    try:
        first = await log.end()
        made = [
            replace(operation(first + n, sql), origin=donor)
            for n, sql in enumerate(statements(missed))
        ]
        for start in range(0, missed, AT_ONCE):
            await log.append([to_record(each) for each in made[start : start + AT_ONCE]])
        cursor = await log.load_cursor(donor)
        assert cursor is not None
        done = replace(from_cursor(cursor), low=first + missed, done=frozenset(), batches=())
        await log.commit_cursor(donor, to_cursor(done, cursor.epoch))
    finally:
        await log.close()


def _wait_ready(ring: LocalRing, name: str) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        status = status_of(ring, name)
        if status["state"] == "READY" and not status["lag"]:
            return
        time.sleep(0.2)
    raise TimeoutError(f"{name} is not READY")


def _return(ring: LocalRing, name: str) -> tuple[float, dict[str, Any]]:
    """Start a HAProc; return the seconds until it is READY, and its own figures of the recovery."""
    began = time.monotonic()
    asyncio.run(ring.start_haproc(name, ready=False))
    recovery: dict[str, Any] = {"replay_s": None, "copy_s": None, "copying_s": 0.0}
    states: list[tuple[float, str]] = []
    while (now := time.monotonic()) < began + WAIT_S:
        with suppress(OSError):  # it begins anew
            status = status_of(ring, name)
            if not states or states[-1][1] != status["state"]:
                states.append((now - began, status["state"]))
                print(f"  {now - began:6.1f} s {status['state']} {status['reason']}")
            if status["recovery"]["copy_s"] is not None:
                recovery |= {key: status["recovery"][key] for key in ("replay_s", "copy_s")}
            recovery["copying_s"] = _length(states, "COPYING", now - began)
            if status["state"] == "READY":
                return now - began, recovery
        time.sleep(0.1)
    raise TimeoutError(f"{name} is not READY: {states}")


def _length(states: Sequence[tuple[float, str]], which: str, now_s: float) -> float:
    """Return the total time in a state, in seconds."""
    ends = [at for at, _ in states[1:]] + [now_s]
    return sum(end - at for (at, state), end in zip(states, ends, strict=True) if state == which)


if __name__ == "__main__":
    main()
