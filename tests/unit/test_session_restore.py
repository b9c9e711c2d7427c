"""Tests of rebuilding a session: an entry that fails breaks only its own name."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from haproc import protos, wire
from haproc.engine.arrow import stream_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, SessionFile, Settings
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.route.streams import Collected
from haproc.sessions.adoption import restore
from haproc.sessions.client import ClientSession, left_by
from haproc.sessions.durable import Numbered
from haproc.sessions.journal import (
    Effect,
    Kept,
    PlanEntry,
    SqlEntry,
    Variable,
    VariablesEntry,
)

ONE = stream_of(pa.table({"v": [1]}))


class Fresh:
    """Records the statements that it runs, and refuses those that contain one of these words."""

    def __init__(self, *refused: str) -> None:
        self.ran: list[str] = []
        self._refused = refused

    async def configure(self, settings: Settings) -> None:
        pass

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        raise NotImplementedError

    async def columns(self, sql: str) -> list[Column]:
        raise NotImplementedError

    async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
        if isinstance(statement, SparkPlan):
            command = wire.parsed(protos.base.Plan, statement.plan).command
            view = command.create_dataframe_view
            text = f"frame {view.name}: {view.input.sql.query}"
            if command.HasField("sql_command"):
                text = command.sql_command.input.with_relations.root.sql.query
        else:
            assert isinstance(statement, SqlText)
            text = statement.sql
        if any(word in text for word in self._refused):
            raise EngineError(ErrorKind.APPLICATION, "refused", error_class="REFUSED")
        self.ran.append(text)


async def made_anew(fresh: Fresh, *entries: Kept) -> list[str]:
    async def blob(sha256: str) -> bytes:
        raise NotImplementedError

    await restore(fresh, Settings(), entries, blob, 1.0)
    return fresh.ran


async def test_dataframe_with_a_repeated_column_name_breaks_alone() -> None:
    plan = protos.base.Plan()
    plan.command.create_dataframe_view.name = "j"
    plan.command.create_dataframe_view.input.sql.query = "SELECT gone"
    columns = (("id", "int"), ("id", "int"))
    made = PlanEntry(plan.SerializeToString(), Effect("view j", columns=columns))
    (ran,) = await made_anew(Fresh("gone"), made)
    assert ran.startswith("frame j: SELECT CAST(NULL AS int) AS `id`, CAST(NULL AS int) AS `id`")


async def test_view_with_an_unreadable_type_breaks_alone() -> None:
    made = SqlEntry("CREATE TEMP VIEW v AS SELECT gone", Effect("view v", columns=(("a", "udt"),)))
    (ran,) = await made_anew(Fresh("gone", "udt"), made)
    assert ran.startswith("frame v: SELECT CAST(NULL AS string) AS `not_rebuilt`")


async def test_variable_that_cannot_be_rebuilt_breaks_alone() -> None:
    variables = VariablesEntry((Variable("x", "odd", ONE), Variable("y", "int", ONE)))
    ran = await made_anew(Fresh("odd"), variables, SqlEntry("CREATE TEMP VIEW v AS SELECT 1"))
    assert ran[:2] == [
        "DROP TEMPORARY VARIABLE IF EXISTS `x`",
        "DECLARE OR REPLACE VARIABLE `y` int",
    ]
    assert ran[-1] == "CREATE TEMP VIEW v AS SELECT 1"


class Spark:
    """Has these variables, each with a type."""

    def __init__(self, **types: str) -> None:
        self._types = types

    def _names_in(self, sql: str) -> list[str]:
        names = [each.split("`")[1] for each in sql.split(",")]
        if not self._types.keys() >= set(names):
            raise EngineError(ErrorKind.APPLICATION, "unresolved", error_class="UNRESOLVED")
        return names

    async def columns(self, sql: str) -> list[Column]:
        return [Column(name, self._types[name]) for name in self._names_in(sql)]

    async def query(self, statement: SqlText, *, timeout_s: float) -> Collected:
        names = self._names_in(statement.sql)
        return Collected((stream_of(pa.table([[1]] * len(names), names)),))


async def test_missing_variable_stays_in_the_journal_beside_a_set_one() -> None:
    unreadable = Variable("x", "odd", b"kept", "7")
    session = SimpleNamespace(
        spark=Spark(y="struct<`a b`:int>"),
        variables=(unreadable,),
        entries=[Numbered(0, "n", VariablesEntry((unreadable,)), 1)],
    )
    declare = "DECLARE y STRUCT<`a b`: INT>"
    found = await left_by(cast(ClientSession, cast(Any, session)), declare, 1.0)
    assert found == VariablesEntry((unreadable, Variable("y", "struct<`a b`:int>", ONE)))
    session.variables, session.entries = (), []
    with pytest.raises(EngineError):
        await left_by(cast(ClientSession, cast(Any, session)), "DECLARE x INT", 1.0)
