"""What the judge that reads texts and EXPLAIN says of the corpus; it goes when that judge goes.

python -m tests.readings.old_judge PORT TOKEN FILE
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, OperationClass, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.config.shares import Shares
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import EngineAddress, Settings
from haproc.pin.determinism import pin
from haproc.pin.model import Moment, Treatment
from haproc.route.analysis import Analysis
from haproc.route.planning import Planning
from haproc.sessions.chain import Adoption, Key
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import State
from haproc.witness.judge import Verdict
from tests.integration.engine_calls import rows
from tests.readings import corpus, golden
from tests.readings.compare import ANY, Outcome, everything, save
from tests.readings.record import worlds
from tests.readings.spark import Spark

TREATMENTS: Final = {
    Treatment.REPLICATE: "text",
    Treatment.MATERIALISE: "rows",
    Treatment.REFUSE: "refused",
}


class OldJudge:
    """Asks an analysis in one world, and in a client's session if that world has one."""

    def __init__(self, engine: SparkConnectEngine, world: str) -> None:
        self.engine = engine
        self.settings = Settings(schema=world)
        self.session: ClientSession | None = None
        planning = Planning(Shares(1), Shares(1))
        self._analysis = Analysis(engine, lambda: 0, time.monotonic, 60, planning)

    async def open(self, world: str) -> None:
        """Make the client's session with what it holds."""
        spark = self.engine.session(f"client/{world}")
        await spark.configure(self.settings)
        for statement in corpus.world(world):
            if "TEMPORARY" in statement or statement.startswith("DECLARE"):
                await rows(spark, statement)
        adoption, state = Adoption(1, "first", "a"), State(self.settings)
        key = Key("ann", "s")
        self.session = ClientSession(key, "", spark, adoption, frozenset(), state)
        self.session.holds_temporaries = True

    async def outcome(self, sql: str) -> Outcome:
        """Return what becomes of a statement."""
        schema = self.settings.schema
        try:
            statement = classify(sql, Context(schema=schema, user="ann"), Rules.builtin())
        except RefusedError as error:
            return Outcome("refused", reason=error.message)
        try:
            return await self._outcome(statement, schema)
        except RefusedError as error:
            return _told(statement, "refused", error.message)
        except EngineError as error:
            wrong = error.kind is ErrorKind.APPLICATION
            return _told(statement, "error" if wrong else "accident", error.error_class)

    async def _outcome(self, statement: Classified, schema: str) -> Outcome:
        if statement.operation_class is OperationClass.QUERY:
            await self._analysis.confirm_query(statement, self.settings, self.session)
            return _told(statement, "query")
        if statement.operation_class is OperationClass.SESSION:
            if self.session is not None:
                await self._analysis.confirm_session_statement(statement, self.session)
            return _told(statement, "session")
        now = datetime.fromisoformat(golden.NOW).replace(tzinfo=UTC)
        pinned = pin(statement, Moment(now, 7, "UTC", "ann", "spark_catalog", schema))
        if pinned.treatment is Treatment.REFUSE and not pinned.dispellable:
            verdict = Verdict(Treatment.REFUSE, pinned.reasons)
        else:
            verdict = await self._analysis.verdict(statement, pinned, self.settings, self.session)
        reasons = "; ".join(verdict.reasons)
        return _told(statement, TREATMENTS[verdict.treatment], reasons, pinned.sql)


def _told(statement: Classified, treatment: str, reason: str = "", text: str = "") -> Outcome:
    reads = tuple(sorted(statement.reads)) if statement.tables_known else (ANY,)
    return Outcome(
        treatment,
        statement.operation_class.value,
        statement.kind.value,
        reads,
        tuple(sorted(statement.writes)),
        text,
        reason,
    )


async def outcomes(port: int, token: str) -> Mapping[str, Outcome]:
    """Return what becomes of each statement that Spark can read; the worlds must be there."""
    address = EngineAddress("127.0.0.1", port, token)
    engine = SparkConnectEngine(address, ring="ring", cluster="a")
    try:
        judges = {name: OldJudge(engine, name) for name in corpus.WORLDS}
        await judges["session"].open("session")
        return {
            statement: await judges[recorded.world].outcome(statement)
            for statement, recorded in everything()
            if not recorded.error
        }
    finally:
        await engine.aclose()


def main() -> None:
    """Write the outcomes to a file."""
    port, token, file = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    with worlds(lambda: Spark(port, token)):
        save(asyncio.run(outcomes(port, token)), file)


if __name__ == "__main__":
    main()
