"""Random windows of statements, one by one and combined, on two tables of a real Spark.

``python -m tests.integration.composing WINDOWS [SEED [LENGTH]]`` runs this many on its own server,
each of 2 to LENGTH statements (12): short ones are quick, long ones contain rarer cases.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from tests.integration.conftest import address_of, start_spark
from tests.integration.engine_calls import apply, rows
from tests.windows import Writer, combined

TABLES: Final = (
    (1, ("k bigint", "s string", "v int", "p decimal(10,2)")),
    (1, ("k string", "s string", "d date", "f double", "t timestamp")),
    (2, ("a smallint", "k string", "v bigint", "b boolean", "s string")),
    (1, ("k date", "q decimal(38,3)", "r float", "x binary", "y tinyint")),
    (1, ("K int", "Ss string", "w int", "`group` string")),
)
"""The number of key columns, and the columns."""


_VERSIONS: Final = itertools.count(1)
"""Versions of markers, which outlive a table that is replaced."""


@dataclass
class Tally:
    """The counts of a run: ``together`` statements ran as ``combined`` ones, some taken apart."""

    windows: int = 0
    statements: int = 0
    failed: int = 0
    together: int = 0
    combined: int = 0
    apart: list[str] = field(default_factory=list)
    one_by_one_s: float = 0.0
    combined_s: float = 0.0


class Pair:
    """Two equal tables: one receives the statements unchanged, the other their combination.

    Made anew by `make`; each pair has its own lane.
    """

    def __init__(self, engine: SparkConnectEngine, schema: str, number: int, seed: str) -> None:
        self._engine = engine
        self._lane = number
        self._tally = Tally()
        self._keys: int
        self._ddl: tuple[str, ...]
        self._keys, self._ddl = TABLES[number % len(TABLES)]
        self._name = f"{schema}.t{number}"
        self._rng = random.Random(seed)

    async def make(self) -> None:
        """Make the tables."""
        for half in "ab":
            columns = ", ".join(self._ddl)
            sql = f"CREATE OR REPLACE TABLE {self._name}{half} ({columns}) USING delta"
            await apply(self._engine, sql, lane=self._lane)
        found = await self._engine.plain_columns(f"spark_catalog.{self._name}b")
        assert found is not None
        self._columns = [Column(c.name, c.type_text) for c in found]

    async def run(self, tally: Tally, length: int, shortest: int | None) -> None:
        """Run one window on both; they must have the same content in the end."""
        self._tally = tally
        quoted = [Column(ddl.rpartition(" ")[0], c.type_text) for ddl, c in self._named()]
        writer = Writer(self._rng, "THE_TABLE", quoted, self._keys)
        if shortest is not None:
            length = self._rng.randint(shortest, length)
        sqls = writer.window(length)
        began = time.perf_counter()
        good = [sql for sql in sqls if await self._runs(sql, "a")]
        between = time.perf_counter()
        table = f"spark_catalog.{self._name}b"
        for text, members in combined(good, table, self._columns):
            await self._combined(text, members)
        tally.windows += 1
        tally.statements += len(sqls)
        tally.failed += len(sqls) - len(good)
        tally.one_by_one_s += between - began
        tally.combined_s += time.perf_counter() - between
        session = self._engine.session(f"looks {self._lane}")
        held = [sorted(map(repr, await rows(session, self._whole(half)))) for half in "ab"]
        assert held[0] == held[1], f"{self._name} differs after {good}"

    def _named(self) -> list[tuple[str, Column]]:
        return list(zip(self._ddl, self._columns, strict=True))

    def _whole(self, half: str) -> str:
        return f"SELECT * FROM {self._name}{half}"

    async def _runs(self, sql: str, half: str) -> bool:
        text = sql.replace("THE_TABLE", f"{self._name}{half}")
        try:
            await apply(self._engine, text, next(_VERSIONS), lane=self._lane)
        except EngineError as error:
            assert error.kind is ErrorKind.APPLICATION, error
            return False
        return True

    async def _combined(self, text: str, members: Sequence[str]) -> None:
        together = len(members) > 1
        if together and await self._runs(text, "b"):
            self._tally.together += len(members)
            self._tally.combined += 1
            return
        if together:
            self._tally.apart.append(text)
        for sql in members:
            assert await self._runs(sql, "b"), f"it succeeded on the other table: {sql}"


async def compare(
    engine: SparkConnectEngine,
    schema: str,
    seed: str,
    *,
    windows: int,
    length: int,
    shortest: int | None = None,
) -> Tally:
    """Run windows of statements on all tables, two at a time; return the counts.

    They have ``length`` statements, or between ``shortest`` and ``length``.
    """
    tally, left = Tally(), iter(range(windows))
    pairs = [Pair(engine, schema, n, f"{seed}/{n}") for n in range(min(windows, len(TABLES)))]
    waiting = list(pairs)
    for pair in pairs:
        await pair.make()

    async def work() -> None:
        for _ in left:
            pair = waiting.pop(0)
            await pair.run(tally, length, shortest)
            waiting.append(pair)

    await asyncio.gather(work(), work())
    return tally


async def _main(windows: int, seed: str = "0", length: str = "12") -> None:
    with tempfile.TemporaryDirectory(prefix="haproc-composing-") as folder:
        server = await asyncio.to_thread(start_spark, "composing", Path(folder), warm=True)
        engine = SparkConnectEngine(address_of(server), ring="ring", cluster="a")
        try:
            await apply(engine, "CREATE SCHEMA composing")
            for number in range(0, windows, 50):
                count = min(50, windows - number)
                each = f"{seed}/{number}"
                tally = await compare(
                    engine, "composing", each, windows=count, length=int(length), shortest=2
                )
                print(number + count, tally, flush=True)
        finally:
            await engine.aclose()
            server.kill()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), *sys.argv[2:]))
