"""Collects the rows of a write, which came in parts, in a staging table of this cluster.

One statement must insert all rows into the write's target: in one commit, with one transaction
marker. So the parts are first collected in a staging table, in the order of the log. Each attempt
makes a staging table with a new name. An earlier attempt may still append to its own table, which
no statement ever reads. So staging tables need no transaction marker and no check.

The cluster that computed the rows has them in a staging table already (`materialise`). It uses that
table if the ``rows`` record that counts names the parts that were made of it.

A staging table is dropped after the write. The next process of the cluster drops what a crash left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dmq import LogCorruptError
from haproc.config.model import LANES_MAX
from haproc.engine import pieces
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane, Settings
from haproc.engine.statement import Statement
from haproc.offloop import by_size
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import from_record
from haproc.replicate.records.rows import Filling, Part, Rows

logger = logging.getLogger(__name__)

DROP_S: Final = 60.0
"""The longest time that a lane waits for the drop of a table; then it is dropped later. Chosen."""


class StagingTables:
    """Makes, fills and drops the staging tables of this cluster."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._attempts = 0
        self._cleaned = asyncio.Event()
        self._in_use: dict[int, list[str]] = {}
        """By offset: the tables that were made for an operation; the last one of them is read."""
        self._computed: dict[int, tuple[str, tuple[int, ...]]] = {}
        """By offset: the table in which an operation's rows were computed, and its parts."""
        self.over: list[str] = []
        """The staging tables that are not needed any more, and will be dropped."""

    async def clean(self) -> None:
        """Drop all staging tables of earlier processes; none of their statements runs any more.

        A lane runs this, so a process that was replaced cannot do it. No rows are collected before
        this has ended, even if it failed: a lane stops a statement whose end is not known before
        it runs the next one.
        """
        core, pauses = self._core, self._core.backoff()
        lane = core.engine.lane(LANES_MAX - 1, core.own_log.still_mine)
        while True:
            await core.health.up.wait()
            try:
                await lane.apply(pieces.DROP_SCHEMA, Settings(), None, timeout_s=DROP_S)
                break
            except EngineError as error:
                logger.warning("staging tables of earlier processes: %s", error.message)
                if error.kind is not ErrorKind.AVAILABILITY:
                    break
            await asyncio.sleep(pauses.pause_s())
        self._cleaned.set()

    async def stage(self, rows: Rows, filling: Filling, lane: Lane) -> str:
        """Return a new table that holds all rows of an operation; raises EngineError.

        An error here is not the operation's fault: it concerns this cluster's staging table.
        """
        table, parts = self._computed.get(rows.offset, ("", ()))
        if table and parts == filling.parts:
            return table
        core, table = self._core, await self.new(rows.offset)
        self._in_use.setdefault(rows.offset, []).append(table)
        with errors_of_cluster():
            await self._run(pieces.MAKE_SCHEMA, lane)
            for number, place in enumerate(filling.parts):
                part = await self._part(rows, number, place)
                add = pieces.go_on if number else pieces.begin
                plan = await by_size(len(part), add, table, part)
                del part  # it is in the plan
                await core.trace(Step.GATHER_PART)
                await self._run(plan, lane)
        await core.trace(Step.GATHER_DONE)
        return table

    async def new(self, offset: int) -> str:
        """Return a name for a staging table that no other attempt ever has."""
        await self._cleaned.wait()
        self._attempts += 1
        return pieces.staging_name(offset, self._core.own_log.epoch, self._attempts)

    def computed(self, offset: int, table: str, parts: tuple[int, ...]) -> None:
        """Keep the table in which an operation's rows were computed.

        It is read if the rows in the log turn out to be ``parts``, which were made of it.
        """
        self.not_needed(offset)
        self._computed[offset] = table, parts

    def not_needed(self, offset: int) -> None:
        """Have the table dropped later in which an operation's rows were computed, if any."""
        if offset in self._computed:
            self.over.append(self._computed.pop(offset)[0])

    async def vanished(self, offset: int) -> EngineError | None:
        """Return an error if an operation's staging table is gone; None if it exists.

        None also if the operation needs none.
        """
        tables = list(self._in_use.get(offset, ()))
        if offset in self._computed:
            tables.append(self._computed[offset][0])
        if not tables:
            return None
        try:
            there = await self._core.engine.staged()
        except EngineError as error:
            return error
        if tables[-1] in there:
            return None
        self.not_needed(offset)
        return EngineError(
            ErrorKind.ENVIRONMENT,
            f"the staging table {tables[-1]} was dropped while it was needed",
        )

    async def drop(self, offset: int, lane: Lane) -> None:
        """Drop the staging tables of an operation, and those that could not be dropped before."""
        self.not_needed(offset)
        self.over += self._in_use.pop(offset, [])
        if not self.over:
            return
        await self._core.trace(Step.STAGING_DROP)
        while self.over:
            table = self.over.pop()
            try:
                await lane.apply(pieces.drop(table), Settings(), None, timeout_s=DROP_S)
            except EngineError as error:
                logger.warning("%s is dropped later: %s", table, error.message)
                self.over.append(table)
                return

    async def _part(self, rows: Rows, number: int, place: int) -> bytes:
        (entry,) = await self._core.own_log.read_log(place, records_max=1)
        part = from_record(entry.record)
        wanted = (place, rows.offset, rows.by, rows.epoch, number)
        if not isinstance(part, Part) or wanted != (
            (entry.offset, part.offset, part.by, part.epoch, part.number)
        ):
            raise LogCorruptError(
                f"offset {place} is no part {number} of the rows of the operation at {rows.offset}"
            )
        return part.rows

    async def _run(self, statement: Statement, lane: Lane) -> None:
        await lane.apply(statement, Settings(), None, timeout_s=self._core.timeouts.apply_s)


@contextmanager
def errors_of_cluster() -> Iterator[None]:
    """Turn application errors into environment errors: HAProc's own statement failed here."""
    try:
        yield
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        raise EngineError(
            ErrorKind.ENVIRONMENT,
            f"rows cannot be gathered: {error.message}",
            error_class=error.error_class,
            sqlstate=error.sqlstate,
        ) from error
