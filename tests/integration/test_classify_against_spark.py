"""What HAProc recognises in a statement, against what Spark's own parser makes of it.

EXPLAIN EXTENDED has no effect and prints the parsed plan: a statement taken for a query must have
no node that writes in it, one taken for a write must have the node of its kind.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.engine.session import SparkSession
from tests.integration.engine_calls import rows
from tests.unit.statement_table import Expected, accepted

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

# A node that the parsed plan must have.
NODES = {
    "insert": r"InsertIntoStatement|PlanWithUnresolvedIdentifier",
    "insert_overwrite": r"InsertIntoStatement|OverwriteByExpression",
    "update": r"UpdateTable",
    "delete": r"DeleteFromTable",
    "merge": r"MergeIntoTable",
    "truncate": r"Truncate",
    "analyze": r"Analyze",
    "create_table": r"CreateTable|ReplaceTable",
    "create_table_as": r"CreateTableAsSelect|ReplaceTableAsSelect|CreateTable",
    "alter_table": r"Alter|Rename|AddColumns|DropColumns|SetTable|RecoverPartitions|AddConstraint|"
    r"AddCheckConstraint|AddPartitions|AddTable|RenamePartitions",
    "drop_table": r"DropTable",
    "create_view": r"CreateView",
    "alter_view": r"AlterView|Rename|SetView",
    "drop_view": r"DropView",
}
WRITING_NODE = re.compile(
    r"InsertInto|MergeInto|UpdateTable|DeleteFrom|Overwrite|Truncate|Create|Replace|Drop|Alter|"
    r"\w+Command|Append|CallTable|AddJar|AddFile"
)
# Delta's own statements: its parser does not take them behind EXPLAIN, so they run here, on
# tables that do not exist.
DELTAS_OWN = re.compile(
    r"OPTIMIZE|VACUUM|REORG|RESTORE|CONVERT|GENERATE|DESCRIBE DETAIL|.* CLONE |ALTER .* CLUSTER BY",
    re.DOTALL,
)
# Known to relatives of Spark, refused by Spark itself.
NOT_SPARKS = re.compile(r"COPY|GRANT|REVOKE")
STATEMENTS = [found for found in accepted() if not NOT_SPARKS.match(found.sql)]


KINDS = sorted({found.kind for found in STATEMENTS})
SIDE_BY_SIDE = 6


def nodes(plan: str) -> list[str]:
    """Return the lines of the parsed plan without what draws its tree."""
    parsed = plan.partition("== Analyzed Logical Plan ==")[0]
    return [line.lstrip(" :+-'") for line in parsed.splitlines()]


async def disagreement(session: SparkSession, expected: Expected) -> str:
    """Say how Spark reads the statement differently; empty if it doesn't."""
    try:
        if DELTAS_OWN.match(expected.sql) or expected.kind == "explain":
            await rows(session, expected.sql)
            return ""
        [(plan,)] = await rows(session, f"EXPLAIN EXTENDED {expected.sql}")
    except EngineError as error:
        own = DELTAS_OWN.match(expected.sql) and error.error_class != "PARSE_SYNTAX_ERROR"
        return "" if own else f"{expected.sql}: {error.message}"
    if expected.kind in ("select", "values"):
        right = not any(WRITING_NODE.match(node) for node in nodes(plan))
    else:
        right = any(re.match(NODES.get(expected.kind, ""), node) for node in nodes(plan))
    return "" if right else f"{expected.sql}: {plan}"


@pytest.mark.parametrize("kind", KINDS)
async def test_recognised_statements_of_kind_are_the_same_to_spark(
    engine: SparkConnectEngine, kind: str
) -> None:
    waiting = [found for found in STATEMENTS if found.kind == kind]
    disagreements: list[str] = []

    async def check(number: int) -> None:
        session = engine.session(f"classify-{number}")
        while waiting:
            disagreements.append(await disagreement(session, waiting.pop()))

    await asyncio.gather(*(check(number) for number in range(SIDE_BY_SIDE)))
    assert not any(disagreements), "\n".join(filter(None, disagreements))
