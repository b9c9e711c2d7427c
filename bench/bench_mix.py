"""The speed of draining a mixed queue after an absence, against one by one on bare Spark.

70 % INSERTs of a row, 20 % UPDATEs and 10 % DELETEs by key, on 8 tables. The queue is in the log as
another cluster's clients left it, and that one's cursor is behind it: having one cluster do it
first would take hours. One by one is what each of them takes a single client of PySpark on the
server that drains it, on tables of the same size. In the end the tables are held against what the
statements say, followed here one after another.

``python -m bench.bench_mix [queued]`` (10,000 operations by default).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql.connect.session import SparkSession

from bench.bench_ring import replay
from bench.draining import fill
from bench.report import Row, report
from bench.rings import past_ring, ring_of
from dmq import Cursor, open_log
from haproc.ring.local import LocalRing

QUEUED: Final = 10_000
TABLES: Final = 8
ROWS: Final = 1_000
"""The number of rows in each table at the beginning."""
SINGLE: Final = 9
BAR: Final = 50.0
COLUMNS: Final = "(id BIGINT, name STRING, price DOUBLE, visits INT)"

INSERT, UPDATE, DELETE = range(3)

Held = tuple[int, str, float, int]
"""A row of a table."""


class Statement(NamedTuple):
    """A statement of the mix, and the row that it changes."""

    kind: int
    sql: str
    table: str
    key: int


def main() -> None:
    """Measure and report."""
    queued = int(sys.argv[1]) if len(sys.argv) > 1 else QUEUED
    with ring_of(2, settings={"timeouts": {"probe_interval_s": 0.5}}) as ring:
        report("mix", drain(ring, queued))


def drain(ring: LocalRing, queued: int) -> list[Row]:
    """Start a cluster whose queue the other one has applied, and time the replay."""
    other, name = ring.names
    asyncio.run(ring.start_spark(name, warm=True))
    session = past_ring(ring.sparks[name])
    tables = [f"mix{n}" for n in range(TABLES)]
    for table in ("by_pyspark", *tables):
        session.sql(f"CREATE TABLE {table} {COLUMNS} USING delta").collect()
        session.sql(f"INSERT INTO {table} VALUES {rows(range(ROWS))}").collect()
    each_s = one_by_one(session)
    statements = mix(tables, queued)
    asyncio.run(_queue(ring, other, [each.sql for each in statements]))
    draining_s = asyncio.run(replay(ring, name))
    followed = follow(tables, statements)
    for table in tables:
        found = {tuple(row) for row in session.sql(f"SELECT * FROM {table}").collect()}
        assert found == followed[table], f"{table} is not what the statements say"
    session.stop()
    single_s = sum(each_s[each.kind] for each in statements)
    what = f"{queued:,} operations of the mix"
    bare = "one by one on bare Spark"
    return [
        Row(f"{what}, drained by a returning cluster", "s", draining_s, bare, single_s),
        Row("drain, operations per second", "1/s", queued / draining_s, bare, queued / single_s),
        Row("times as fast as one by one", "", single_s / draining_s, "bar", BAR),
        Row("one-row INSERT on bare Spark, p50", "s", each_s[0]),
        Row("UPDATE by key on bare Spark, p50", "s", each_s[1]),
        Row("DELETE by key on bare Spark, p50", "s", each_s[2]),
    ]


async def _queue(ring: LocalRing, other: str, statements: Sequence[str]) -> None:
    log = await open_log(ring.config.log)
    await fill(log, statements)
    await log.commit_cursor(other, Cursor(len(statements)))
    await log.close()


def one_by_one(session: SparkSession) -> tuple[float, float, float]:
    """Return the seconds of an INSERT, an UPDATE and a DELETE of one client of bare Spark."""
    found = []
    for what in (insert, update, delete):
        taken = []
        for n in range(SINGLE):
            began = time.perf_counter()
            session.sql(what("by_pyspark", ROWS + n if what is insert else n)).collect()
            taken.append(time.perf_counter() - began)
        found.append(statistics.median(taken))
    return found[0], found[1], found[2]


def follow(tables: Sequence[str], statements: Sequence[Statement]) -> dict[str, set[Held]]:
    """Return the rows of each table after the statements; keys are unique."""
    held = {table: {n: row(n) for n in range(ROWS)} for table in tables}
    for kind, _, table, key in statements:
        if kind == INSERT:
            held[table][key] = row(key)
        elif kind == UPDATE and key in held[table]:
            _, _, price, visits = held[table][key]
            held[table][key] = (key, f"seen {key}", price, visits + 1)
        elif kind == DELETE:
            held[table].pop(key, None)
    return {table: set(found.values()) for table, found in held.items()}


def rows(ids: range) -> str:
    """Return rows as SQL."""
    return ", ".join(f"({n}, 'n{n}', {n}.5, 0)" for n in ids)


def row(key: int) -> Held:
    """Return the row of a key as it is inserted."""
    return key, f"n{key}", key + 0.5, 0


def insert(table: str, key: int) -> str:
    """Return the INSERT of a key."""
    return f"INSERT INTO {table} VALUES ({key}, 'n{key}', {key}.5, 0)"


def update(table: str, key: int) -> str:
    """Return the UPDATE of a key."""
    return f"UPDATE {table} SET visits = visits + 1, name = 'seen {key}' WHERE id = {key}"


def delete(table: str, key: int) -> str:
    """Return the DELETE of a key."""
    return f"DELETE FROM {table} WHERE id = {key}"


def mix(names: list[str], count: int) -> list[Statement]:
    """Return this number of statements: 70 % INSERTs, 20 % UPDATEs, 10 % DELETEs."""
    rng = random.Random(14)
    ends = dict.fromkeys(names, ROWS)
    found: list[Statement] = []
    for _ in range(count):
        name, chance = rng.choice(names), rng.random()
        if chance < 0.7:
            found.append(Statement(INSERT, insert(name, ends[name]), name, ends[name]))
            ends[name] += 1
        elif chance < 0.9:
            key = rng.randrange(ends[name])
            found.append(Statement(UPDATE, update(name, key), name, key))
        else:
            key = rng.randrange(ends[name])
            found.append(Statement(DELETE, delete(name, key), name, key))
    return found


if __name__ == "__main__":
    main()
