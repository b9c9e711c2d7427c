"""Test that names of functions and columns have the same meaning on a ring and on Spark alone.

Random statements (`named_statements`) run through a HAProc's door, and also on the Spark of one
cluster. Each has to fail with the same condition or to leave the same rows. Values that change (the
time, random values) are recognised by their form: no row of the statements has such a form.
`NAMED_LIVES=n` runs n tables instead of a few.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from haproc.doors.http.access import ANONYMOUS
from tests.integration.named_statements import Line, Position, life
from tests.integration.pyspark_program import FailedError, Program
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

LIVES: Final = int(os.environ.get("NAMED_LIVES", "4"))
STEPS: Final = 10
NAMES: Final = ("named_ring", "named_alone")

_SHAPES: Final = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"datetime\.datetime\(20(?!20)[^)]*\)"), "MOMENT"),
    (re.compile(r"datetime\.date\(20(?!20)[^)]*\)"), "TODAY"),
    (re.compile(r"\b0\.\d{3,}(e-\d+)?"), "CHANCE"),
)
_MOVING: Final = re.compile(r"\b(rand|uuid|current_\w+|localtimestamp|now|user|session_user)\(")
"""The changing values that a refused statement reads, as Spark's analyzed plan names them."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of a line: the rows of a query, the condition of an error, or neither."""

    rows: tuple[str, ...] = ()
    error: str = ""

    @property
    def refused(self) -> bool:
        return self.error.startswith("HAPROC_")


class Side:
    """A program at the ring or at Spark alone; each life has a schema of its own."""

    def __init__(self, client: Program, name: str) -> None:
        self._client = client
        self._name = name
        # Of a query, and of the ring's writes.
        user = client.run("spark.sql('SELECT current_user()').collect()[0][0]")
        self._users = (repr(user), repr(ANONYMOUS))
        self.schemas: list[str] = []

    def begin(self) -> None:
        """Create a new schema and use it."""
        self.schemas.append(f"{self._name}_{len(self.schemas)}")
        self._client.run(f"spark.sql('CREATE SCHEMA {self.schemas[-1]}')")
        self._client.run(f"spark.catalog.setCurrentDatabase('{self.schemas[-1]}')")

    def drop(self) -> None:
        """Drop all schemas."""
        self._client.run("spark.catalog.setCurrentDatabase('default')")
        for schema in self.schemas:
            self._client.run(f"spark.sql('DROP SCHEMA {schema} CASCADE')")

    def run(self, line: Line) -> LineResult:
        """Run a line and return its result, with a word in place of each changing value."""
        try:
            found = self._client.run(line.text)
        except FailedError as error:
            return LineResult(error=str(error.details[0] if error.details else error))
        return (
            LineResult(rows=tuple(sorted(map(self._shape, found)))) if line.looks else LineResult()
        )

    def _shape(self, row: str) -> str:
        row = row.replace(self.schemas[-1], "SCHEMA")
        for user in self._users:
            row = row.replace(user, "USER")
        for pattern, word in _SHAPES:
            row = pattern.sub(word, row)
        return row


def follow(alone: Side, lines: Sequence[Line], ring: Sequence[LineResult]) -> list[str]:
    """Run on Spark alone what the ring has run; return the differences.

    A line that the ring refused is not run. The refusal is right if Spark's plan has a changing
    value.
    """
    differing = []
    for line, came in zip(lines, ring, strict=True):
        if came.refused:
            explained = f"[spark.sql({'EXPLAIN EXTENDED ' + line.sql!r}).collect()[0][0]]"
            plan = alone.run(Line(explained, looks=True))
            if not line.sql or not _MOVING.search("".join(plan.rows)):
                differing.append(f"{line.sql or line.text}\n  refused: {came.error}")
            continue
        found = alone.run(line)
        if found != came:
            differing.append(f"{line.sql or line.text}\n  ring:  {came}\n  alone: {found}")
    return differing


@dataclass
class Tally:
    """The counts of results, and of the positions of names in lines that both ran."""

    differing: list[str]
    came: Counter[str]
    positions: Counter[Position]


def compare(ring: Side, alone: Side, seeds: Iterable[int], steps: int = STEPS) -> Tally:
    """Run lives on the ring and on Spark alone, each in a schema of its own."""
    tally = Tally([], Counter(), Counter())
    with ThreadPoolExecutor(1) as executor:
        waiting: list[tuple[int, Any]] = []
        for seed in seeds:
            lines = life(seed, steps).lines
            ring.begin()
            came = [ring.run(line) for line in lines]

            def after(
                lines: Sequence[Line] = lines, came: Sequence[LineResult] = came
            ) -> list[str]:
                alone.begin()
                return follow(alone, lines, came)

            waiting.append((seed, executor.submit(after)))
            print(f"life {seed}: {len(lines)} lines", flush=True)
            for line, each in zip(lines, came, strict=True):
                if not line.looks:
                    tally.came[each.error or "done"] += 1
                if not each.refused:
                    tally.positions.update(line.positions)
        for seed, found in waiting:
            tally.differing += [f"life {seed}: {each}" for each in found.result()]
    alone.drop()
    return tally


def test_names_of_functions_and_columns_have_the_meaning_of_spark_alone(rig: Rig) -> None:
    # One cluster's Spark, without its HAProc.
    server = rig.sparks.sparks[rig.ring.names[-1]]
    address = f"sc://localhost:{server.port}/;token={server.token}"
    with ExitStack() as ending:
        clients = [Program(f"sc://{rig.door('a')}"), Program(address)]
        for client in clients:
            ending.callback(client.end)
        ring, alone = (Side(c, name) for c, name in zip(clients, NAMES, strict=True))
        tally = compare(ring, alone, range(LIVES))
    print(tally.came)
    assert not tally.differing, "\n".join(tally.differing)
    # Most did something, and a name stood in each position.
    assert tally.came["done"] > 0.6 * tally.came.total(), tally.came
    assert not set(Position) - set(tally.positions)
    rig.check_equal(*(table for schema in ring.schemas for table in tables_in(rig, schema)))


def tables_in(rig: Rig, schema: str) -> list[str]:
    """Return the full names of a schema's tables, without its views."""
    views = {row[1] for row in rig.everywhere(f"SHOW VIEWS IN {schema}")}
    names = [row[1] for row in rig.everywhere(f"SHOW TABLES IN {schema}")]
    return [f"{schema}.{name}" for name in names if name not in views]
