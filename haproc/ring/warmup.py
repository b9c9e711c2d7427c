"""Run one of each kind of statement on a fresh server, whose first ones take seconds.

Through the engine itself, so that what the engine will use is warm and the server is known to serve
it: a lane for the writes, a session for the reads. Its table lies in a schema of its own, which is
no part of what the ring holds: a warm-up that is interrupted leaves it, and the next one drops it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from haproc.classify.names import OWN_SCHEMA
from haproc.engine.channel import EngineLimits
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import EngineAddress, Settings, TransactionMarker
from haproc.engine.statement import SqlText

_TABLE = f"{OWN_SCHEMA}.t"
_STATEMENT_TIMEOUT_S = 120.0
"""Chosen: the slowest first statement took 4 s on a quiet machine."""
_RETRY_S = 0.2
_WRITES = (
    f"DROP SCHEMA IF EXISTS {OWN_SCHEMA} CASCADE",
    f"CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA}",
    f"CREATE OR REPLACE TABLE {_TABLE} (id BIGINT, name STRING) USING delta",
    f"INSERT INTO {_TABLE} VALUES (1, 'a'), (2, 'b')",
    f"UPDATE {_TABLE} SET name = 'c' WHERE id = 1",
    f"MERGE INTO {_TABLE} t USING (SELECT 3L AS id, 'd' AS name) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *",
    f"DELETE FROM {_TABLE} WHERE id = 2",
)
_READS = (f"SELECT count(*), bit_xor(xxhash64(*)) FROM {_TABLE}",)
_CLEANUP = f"DROP SCHEMA IF EXISTS {OWN_SCHEMA} CASCADE"


async def run(
    port: int, token: str, answers: asyncio.Event, progress: Callable[[str], None]
) -> None:
    """Warm the server on this port up; raises EngineError. ``answers``: it ran a statement."""
    address = EngineAddress("127.0.0.1", port, token)
    patient = EngineLimits(
        control_timeout_s=_STATEMENT_TIMEOUT_S, small_statement_timeout_s=_STATEMENT_TIMEOUT_S
    )
    engine = SparkConnectEngine(address, ring="warm-up", cluster="local", limits=patient)
    try:
        await _first_answer(engine)
        answers.set()
        steps = len(_WRITES) + len(_READS) + 2
        for number, sql in enumerate(_WRITES, 1):
            progress(f"warming up, {number} of {steps}")
            await _write(engine, sql, number)
        for number, sql in enumerate(_READS, len(_WRITES) + 1):
            progress(f"warming up, {number} of {steps}")
            await _read(engine, sql)
        await engine.offsets_applied([_TABLE], "warm-up")
        progress(f"warming up, {steps} of {steps}")
        await _write(engine, _CLEANUP, steps)
    finally:
        await engine.aclose()


async def _first_answer(engine: SparkConnectEngine) -> None:
    """Wait until a statement runs: a busy machine accepts connections before it can serve them."""
    while True:
        try:
            return await engine.probe(timeout_s=_STATEMENT_TIMEOUT_S)
        except EngineError as error:
            if error.kind is not ErrorKind.AVAILABILITY:
                raise
        await asyncio.sleep(_RETRY_S)


async def _write(engine: SparkConnectEngine, sql: str, version: int) -> None:
    marker = TransactionMarker("warm-up", version)
    await engine.lane(0).apply(SqlText(sql), Settings(), marker, timeout_s=_STATEMENT_TIMEOUT_S)


async def _read(engine: SparkConnectEngine, sql: str) -> None:
    result = await engine.session("warm-up").query(SqlText(sql), timeout_s=_STATEMENT_TIMEOUT_S)
    async with contextlib.aclosing(result):
        async for _ in result:
            await asyncio.sleep(0)
