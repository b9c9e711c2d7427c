"""Appends of rows that stand in the plan itself: what needs no look by Spark's analysis.

``createDataFrame(…).writeTo("t").append()`` is to Spark Connect what INSERT … VALUES is to SQL:
the rows are what they are on every cluster. They stand in a ``local_relation``, and PySpark puts
the names of their columns around it (``to_df``). What has any other step in it, an option, a
partitioning or another mode, is no plain append, and is looked at like every plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from haproc.classify.plans.reading import Mode, PlanReading

ColumnTypes: TypeAlias = Sequence[tuple[str, str]]
MODES: Final = frozenset({Mode.SAVE_APPEND, Mode.INSERT, Mode.APPEND})
_FIELDS: Final = frozenset({"input", "source", "table", "table_name", "mode"})
"""Of a write that says nothing but what goes where."""
_SOURCES: Final = frozenset({"", "delta"})
_HIDING: Final = ("udt", "extension<")
"""In the texts of types that are others beneath."""
_TEXTS: Final = ("string", "char", "variant")


def local_rows(plan: Any, reading: PlanReading) -> ColumnTypes | None:
    """Return the columns of the rows that a plan appends, if it does that and nothing else.

    ``plan`` is one that was read, with the rows that its client has sent before. Each column comes
    with a text that names its types in Arrow and in Spark. None: it may be anything else.
    """
    if reading.mode not in MODES:
        return None
    command = plan.command
    message = getattr(command, command.WhichOneof("command_type"))
    if not {field.name for field, _ in message.ListFields()} <= _FIELDS:
        return None
    if getattr(message, "source", "").lower() not in _SOURCES:
        return None
    relation, names = message.input, None
    while (kind := relation.WhichOneof("rel_type")) == "to_df":
        names = names or list(relation.to_df.column_names)
        relation = relation.to_df.input
    if kind != "local_relation":
        return None
    columns = _columns(relation.local_relation)
    if columns is None or names is None:
        return columns
    if len(names) != len(columns):
        return None
    return [(name, types) for name, (_, types) in zip(names, columns, strict=True)]


def has_texts(columns: ColumnTypes) -> bool:
    """Whether any of the columns may hold texts, from which Spark could make something else."""
    return any(text in types.lower() for _, types in columns for text in _TEXTS)


def _columns(local: Any) -> ColumnTypes | None:
    """Return the columns of a local relation; None if Spark might not take it."""
    given = _of_arrow(local.data) if local.HasField("data") else None
    stated = _of_schema(local.schema) if local.HasField("schema") else None
    if (given is None and local.HasField("data")) or (stated is None and local.HasField("schema")):
        return None
    if given is None or stated is None:
        found = given or stated
    elif len(given) != len(stated):
        return None
    else:
        pairs = zip(given, stated, strict=True)
        found = [(name, f"{arrow} {spark}") for (_, arrow), (name, spark) in pairs]
    if not found or any(word in types.lower() for _, types in found for word in _HIDING):
        return None
    return found


def _of_arrow(data: bytes) -> ColumnTypes | None:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError):
        return None
    return [(field.name, str(field.type)) for field in schema]


def _of_schema(text: str) -> ColumnTypes | None:
    """Return the columns of a schema in JSON, as PySpark writes it."""
    try:
        fields = json.loads(text)["fields"]
        return [(str(field["name"]), json.dumps(field["type"])) for field in fields]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
