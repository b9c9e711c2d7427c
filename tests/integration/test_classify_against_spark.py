"""What HAProc recognises in a statement, against what Spark's own parser makes of it.

EXPLAIN EXTENDED has no effect and prints the parsed plan: a statement taken for a query must have
no node that writes in it, one taken for a write must have the node of its kind.
"""

from __future__ import annotations

import re

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from tests.integration.engine_calls import rows
from tests.unit.statement_table import Expected, accepted

pytestmark = pytest.mark.spark

# The node at the top of the parsed plan.
NODES = {
    "insert": r"InsertIntoStatement|Union|UnresolvedWith",
    "insert_overwrite": r"InsertIntoStatement|OverwriteByExpression|Union|UnresolvedWith",
    "update": r"UpdateTable|UnresolvedWith",
    "delete": r"DeleteFromTable|UnresolvedWith",
    "merge": r"MergeIntoTable|UnresolvedWith",
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
    r"OPTIMIZE|VACUUM|REORG|RESTORE|CONVERT|GENERATE|DESCRIBE DETAIL|.* CLONE ", re.DOTALL
)
# Known to relatives of Spark, refused by Spark itself.
NOT_SPARKS = re.compile(r"COPY|GRANT|REVOKE")
STATEMENTS = [found for found in accepted() if not NOT_SPARKS.match(found.sql)]


def first_node(plan: str) -> str:
    """Return the top node of the parsed plan."""
    _, _, parsed = plan.partition("== Parsed Logical Plan ==")
    return parsed.strip().partition("\n")[0].lstrip("'")


@pytest.mark.parametrize("expected", STATEMENTS, ids=lambda expected: expected.sql[:60])
async def test_recognised_statement_is_the_same_to_spark(
    engine: SparkConnectEngine, expected: Expected
) -> None:
    session = engine.session("classify")
    if DELTAS_OWN.match(expected.sql):
        with pytest.raises(EngineError) as caught:
            await rows(session, expected.sql)
        assert caught.value.error_class != "PARSE_SYNTAX_ERROR", caught.value.message
        return
    if expected.kind == "explain":
        await rows(session, expected.sql)
        return
    [(plan,)] = await rows(session, f"EXPLAIN EXTENDED {expected.sql}")
    top = first_node(plan)
    if expected.kind in ("select", "values"):
        parsed = plan.partition("== Analyzed Logical Plan ==")[0]
        assert not any(WRITING_NODE.match(line.lstrip(" :+-'")) for line in parsed.splitlines()), (
            parsed
        )
    elif expected.kind in NODES:
        assert re.match(NODES[expected.kind], top), plan
