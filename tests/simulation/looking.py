"""The service behind the doors, on a simulated ring: it looks at the simulated cluster's tables."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from haproc.classify.model import Classified, Kind, Recognised
from haproc.classify.rules import parse_rules
from haproc.engine.arrow import stream_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Settings
from haproc.node.member import build_sessions
from haproc.pin.literals import Moment, Treatment
from haproc.reading.judge import Judged
from haproc.route.model import Request, SentRows
from haproc.route.parts import Resources
from haproc.route.service import RingService
from tests.simulation.directed import Stage
from tests.simulation.reads import Doors

_READ: Final = re.compile(r"(?<!DELETE )FROM (\w+)")


async def at_once() -> None:
    """Return at once: nothing happens meanwhile."""


class Looking:
    """The part of an engine and its sessions that the service asks before a write."""

    def __init__(self, stage: Stage, name: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._spark = stage.node(name).spark
        self._meanwhile = meanwhile
        """The events after a look, before its answer is used."""
        self.looks = 0

    def session(self, key: str) -> Looking:
        return self

    async def configure(self, settings: Settings) -> None:
        """Do nothing: all sessions are alike."""

    async def table_columns(self, name: str) -> Sequence[Column]:
        self.looks += 1
        await self._spark.travel()
        found = self._spark.columns(name.rpartition(".")[2])
        await self._meanwhile()
        if not found:
            raise EngineError(
                ErrorKind.APPLICATION,
                f"no table {name}",
                error_class="TABLE_OR_VIEW_NOT_FOUND",
                sqlstate="42P01",
            )
        return [Column(column, "string") for column in found]

    async def recognised(self, text: str, settings: Settings, user: str) -> Recognised:
        """Return the parser's reading of a write into a table."""
        kind, name = re.findall(r"(INSERT|UPDATE|DELETE)\b(?: INTO| FROM)? (\w+)", text)[0]
        return Recognised(Kind(kind.lower()), writes=frozenset({f"spark_catalog.default.{name}"}))

    async def judged(
        self,
        statement: Classified,
        asker: object,
        moment: Moment,
        carried: object = None,
    ) -> Judged:
        """Return a write's reading, as `haproc.route.readings` does, without any finding."""
        self.looks += 1
        await self._spark.travel()
        await self._meanwhile()
        reads = frozenset(f"spark_catalog.default.{name}" for name in _READ.findall(statement.sql))
        return Judged(
            statement.kind,
            statement.writes,
            Treatment.REPLICATE,
            statement.sql,
            reads=reads,
            rests_on=reads | statement.writes,
        )

    definition = judged


def service(
    stage: Stage,
    name: str = "a",
    meanwhile: Callable[[], Awaitable[None]] = at_once,
    rules: str = "[]",
) -> RingService:
    """Return the service behind a node's doors."""
    life = stage.life(name)
    engine: Any = Looking(stage, name, meanwhile)
    reads = Doors(stage.ring, random.Random(1)).reads(life)
    parsed, member, config = parse_rules(f"rules: {rules}"), life.member, stage.ring.config
    sessions, *_ = build_sessions(config, member, life.world)
    doors = RingService(
        Resources(config, member.replica, engine, parsed, member.assurance, reads, sessions)
    )
    doors._making.readings = engine
    doors._classifying._recognised = engine.recognised
    return doors


def rows(op_id: str, row: Mapping[str, str], table: str = "t", **fields: Any) -> Request:
    """Return a request with a row for a table, as a door makes it."""
    sent = stream_of(pa.table({name: [value] for name, value in row.items()}))
    return Request(op_id, SentRows(table, sent), repr((op_id, row)), **fields)
