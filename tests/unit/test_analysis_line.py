"""Analyses that wait for the driver: whom they keep waiting."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from haproc.classify.classifier import classify
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Engine, Settings
from haproc.engine.statement import SqlText
from haproc.pin.determinism import pin
from haproc.pin.model import Moment
from haproc.route.analysis import Analysis
from haproc.route.explain import Carried
from haproc.route.planning import Planning

SQL = "INSERT INTO u SELECT a FROM p WHERE a IN (SELECT a FROM q)"
NOW = Moment(datetime(2026, 3, 1, tzinfo=UTC), 7, "UTC", "ann", "spark_catalog", "default")


class _Spark:
    async def configure(self, settings: Settings) -> None:
        """Nothing to do."""

    async def query(self, *_: Any, **__: Any) -> Any:
        raise EngineError(ErrorKind.APPLICATION, "no such table")


class _Engine:
    def session(self, *_: Any, **__: Any) -> _Spark:
        return _Spark()


async def test_who_waits_for_its_turn_with_dataframes_keeps_no_other_user_waiting() -> None:
    planning = Planning(Shares(2, 1), Shares(1))
    analysis = Analysis(cast(Engine, _Engine()), lambda: 0, lambda: 0.0, 60.0, planning)
    statement = classify(SQL, Context(schema="default"), Rules.builtin())
    frames = Carried(SqlText, frozenset({"p"}))

    async def ask(user: str) -> None:
        with pytest.raises(EngineError):
            await analysis.verdict(statement, pin(statement, NOW), Settings(), None, user, frames)

    async with planning.turn("ada", 1.0):  # her share
        waits = asyncio.create_task(ask("ada"))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(ask("bob"), 10)
        assert planning.waiting == 1
    await waits
