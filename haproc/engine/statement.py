"""The forms in which a cluster gets a statement, and the plans that HAProc's plugin answers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from haproc import protos

# Plans that HAProc's plugin in the server answers (`haproc/spark/Reader.java`).
#
# Each is a relation of the plugin's own; its bytes are JSON. None has a plan id: Spark Connect
# caches the analyzed plans of relations with an id, and would answer from that cache.


_VERSION: Final = "haproc/version"
_READ: Final = "haproc/read"
_FINGERPRINT: Final = "haproc/standing"


def version_plan() -> Any:
    """Return the plan for one row with the server's versions, see `haproc.engine.server`."""
    return plugin_plan(_VERSION, b"")


def reading_plan(statement: SqlText | SparkPlan, *, parsed_only: bool = False) -> bytes:
    """Return the bytes of the plan by which the plugin returns a statement's plan reading."""
    if isinstance(statement, SqlText):
        plan = bytes(sql_plan(statement.sql).SerializeToString())
    else:
        plan = statement.plan
    request = {
        "plan": base64.b64encode(plan).decode(),
        "analyze": not parsed_only,
        "columns": isinstance(statement, SparkPlan),
    }
    return bytes(plugin_plan(_READ, json.dumps(request).encode()).SerializeToString())


def fingerprint_plan(folder: str, named: Sequence[tuple[str, Sequence[str], bool]]) -> Any:
    """Return the plan by which the plugin returns fingerprints of objects and a list of files.

    The answer is JSON: the ``files`` of the folder, and the fingerprints (``standing``). ``named``:
    sort, parts of the name, True if the content is asked for; see `Standing.java`.
    """
    request = [
        {"sort": sort, "parts": [*parts], "content": content} for sort, parts, content in named
    ]
    return plugin_plan(_FINGERPRINT, json.dumps({"folder": folder, "named": request}).encode())


def plugin_plan(what: str, request: bytes) -> Any:
    """Return the plan by which the plugin answers a question; ``what`` names the question."""
    plan = protos.base.Plan()
    plan.root.extension.type_url = what
    plan.root.extension.value = request
    return plan


# Plans and relations of SQL.


def sql_plan(sql: str) -> Any:
    """Return the plan that runs a statement in one round trip."""
    plan = protos.base.Plan()
    plan.root.sql.query = sql
    return plan


def sql_relation(sql: str) -> Any:
    """Return the relation that a SQL query stands for."""
    relation = protos.relations.Relation()
    relation.sql.query = sql
    return relation


def table_relation(table: str) -> Any:
    """Return the relation that reads a table; ``table``: its name as SQL has it."""
    relation = protos.relations.Relation()
    relation.read.named_table.unparsed_identifier = table
    return relation


# A statement as a cluster runs it, in any form.
#
# Sessions and lanes take any form; only `engine.remote.plan_of` turns a form into a plan of
# Spark's. A statement as a client sends it, before its parameters are bound, is a
# `haproc.route.model.Sent`. The log's records hold statements by their tags (`dmq.log`).


class SqlText(Struct, frozen=True, tag="sql"):
    """A complete SQL statement; the values of its parameters are in it."""

    sql: str


ROWS_MAX: Final = 1_000_000
"""The most rows of one statement. Chosen: each row takes some 100 bytes of a driver, even if its
content is nearly empty."""


class ArrowRows(Struct, frozen=True, tag="rows"):
    """Rows to append to a table by column name; ``rows`` is one Arrow IPC stream."""

    table: str
    rows: bytes


class RowsInLog(ArrowRows, frozen=True, tag="rows-in-log"):
    """Stands for large rows that are in the log, and not in memory until a cluster needs them.

    ``rows`` is their schema, without rows; ``size_bytes`` and ``count`` are those of the rows. It
    is never stored in the log itself. ``fetch`` yields the rows, as Arrow streams, when they are
    sent.
    """

    size_bytes: int = 0
    count: int = 0
    fetch: Callable[[], AsyncGenerator[bytes, None]] | None = None


class SparkPlan(Struct, frozen=True, tag="plan"):
    """A complete Spark Connect plan; ``plan`` is a serialized ``spark.connect.Plan``."""

    plan: bytes


Statement: TypeAlias = SqlText | ArrowRows | SparkPlan


def text_size(statement: Statement) -> int:
    """Return the number of characters of SQL text in a statement; 0 if it has none."""
    return len(statement.sql) if isinstance(statement, SqlText) else 0
