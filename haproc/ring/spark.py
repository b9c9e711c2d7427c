"""One local Spark Connect server with Delta, for development, demos and tests.

It is warmed up: it runs statements of each kind first, because the first ones take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from haproc.classify.names import OWN_SCHEMA
from haproc.engine.channel import EngineLimits
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import EngineAddress, Settings, TransactionMarker
from haproc.engine.statement import SqlText
from haproc.failure import message_of
from haproc.ring import runtime
from haproc.ring.process import LocalServer, ProcessId
from haproc.ring.settings import (
    SPARK_LOG_SETTINGS,
    RingError,
    properties,
    spark_java_options,
    spark_server_settings,
)

# Warming up a fresh server: it runs one of each kind of statement, because the first ones take
# seconds.
#
# HAProc's own engine runs them: the writes in a lane, the reads in a session. So the parts that the
# engine uses are warm, and the server is known to work with the engine. The table is in a schema of
# its own, which the ring ignores. An interrupted warm-up leaves the schema; the next one drops it.


_TABLE = f"{OWN_SCHEMA}.t"
_STATEMENT_TIMEOUT_S = 120.0
"""The deadline of each statement of the warm-up. Chosen: the slowest first one took 4 s on a quiet
machine."""
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
    """Warm up the Spark server on this port: run statements of each kind; raises EngineError.

    ``answers``: an event that is set once the server has answered for the first time.
    """
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
    """Wait until Spark runs a statement: a busy machine accepts connections before that."""
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


# One local Spark Connect server with Delta, for development, demos and tests.
#
# The server is a single JVM, started directly (without shell scripts, so its pid is the JVM's). It
# listens on 127.0.0.1 and refuses clients without the token. All its files are in one folder:
# metastore, warehouse, scratch space, log, pid file. A new start in the same folder finds the same
# tables. The server is warm when it has run one of each kind of Delta statement.


START_TIMEOUT_S = 180.0
"""The longest time until a started server answers, or is warm. Chosen, not measured: three servers
starting at once on two busy cores took under 60 s."""
_POLL_INTERVAL_S = 0.05


class SparkStartError(RingError):
    """A local Spark server did not start; the message ends with the last lines of its log."""


class LocalSpark(LocalServer):
    """A local Spark Connect server with its folder."""

    def __init__(
        self,
        name: str,
        folder: Path,
        port: int,
        token: str,
        *,
        memory: str = "1g",
        cores: int = 2,
        settings: Mapping[str, str] | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare a server on ``port``; it is not started yet.

        ``settings``: further settings of Spark.
        """
        super().__init__("spark", name, folder, memory, progress)
        self.port = port
        self.token = token
        self.settings = spark_server_settings(name, self.folder, port, cores, settings)
        self._warm = self.folder / "spark.warm"

    async def start(self, *, timeout_s: float = START_TIMEOUT_S, warm: bool = True) -> None:
        """Start the server unless it runs; return once it answers, or with ``warm`` is warm.

        It is warm when it has run statements of each kind. A server that answers, but is not warm
        in time, is no error.
        """
        end = time.monotonic() + timeout_s
        began = time.monotonic()
        if self._process.identity() is None:
            await asyncio.to_thread(self._launch)
        self._progress("starting")
        await self._wait_listening(end)
        self._progress(f"answers after {time.monotonic() - began:.1f} s")
        identity = self._process.identity()
        # Once for each process: warming up three warm servers takes seconds, too.
        if warm and not self._is_warm(identity):
            if await self._warm_up(end):
                self._warm.write_text(str(identity))
            self._progress(f"ready after {time.monotonic() - began:.1f} s")

    def _launch(self) -> None:
        jars = [*runtime.delta_jars(self._progress), runtime.jar(self._progress)]
        for part in ("local", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(SPARK_LOG_SETTINGS)
        file = self.folder / "spark.conf"
        file.write_text(properties(self.settings))
        own = [str(path) for path in sorted((runtime.spark_home() / "jars").glob("*.jar"))]
        command = [
            str(runtime.java()),
            *("-cp", os.pathsep.join([*own, *map(str, jars)])),
            *spark_java_options(self.folder, self.memory),
            "org.apache.spark.deploy.SparkSubmit",
            *("--properties-file", str(file)),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            "spark-internal",
        ]
        self._process.start(
            command, folder=self.folder, log=self.log, environment=self._environment()
        )

    def _environment(self) -> dict[str, str]:
        """Return this process's environment variables, without those for another Spark."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        return kept | {
            "SPARK_HOME": str(runtime.spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Not on the command line, which every user of the machine can read.
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token,
            "PYSPARK_PYTHON": sys.executable,
        }

    async def _wait_listening(self, end: float) -> None:
        while True:
            self._check_alive()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            if time.monotonic() >= end:
                raise SparkStartError(
                    f"Spark {self.name} does not answer on port {self.port}; the end of "
                    f"{self.log}:\n{self.log_tail()}"
                )
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _warm_up(self, end: float) -> bool:
        """Run statements of each kind on the server; False if it serves, but they take too long.

        If the server ends meanwhile, the error shows its log, which says more than a lost
        connection.
        """
        answers = asyncio.Event()
        try:
            async with asyncio.timeout(max(1.0, end - time.monotonic())):
                await run(self.port, self.token, answers, self._progress)
                return True
        except (EngineError, TimeoutError) as error:
            await asyncio.sleep(0)
            self._check_alive()
            slow = isinstance(error, TimeoutError) or error.kind is ErrorKind.AVAILABILITY
            if answers.is_set() and slow:
                self._progress("is slow: not warm yet, its first statements take longer")
                return False
            raise SparkStartError(
                f"Spark {self.name} answers but can't run statements: {message_of(error)}; "
                f"the end of {self.log}:\n{self.log_tail()}"
            ) from error

    def _is_warm(self, identity: ProcessId | None) -> bool:
        try:
            return self._warm.read_text() == str(identity)
        except FileNotFoundError:
            return False

    def _check_alive(self) -> None:
        if self._process.identity() is None:
            raise SparkStartError(
                f"Spark {self.name} ended while it started; the end of {self.log}:\n"
                f"{self.log_tail()}"
            )
