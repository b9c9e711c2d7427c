"""The form in which a judged write enters the log: its text, its query and target, or its rows."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.model import Kind
from haproc.classify.plans.parsing import Mode, PlanReading
from haproc.classify.tokens import TokenKind, tokenize
from haproc.engine.placeholder import placeholder
from haproc.engine.statement import SparkPlan, SqlText
from haproc.pin.literals import Treatment
from haproc.pin.sqltypes import quote_name
from haproc.reading.cut import Cut
from haproc.reading.judge import Judged
from haproc.replicate.records.rows import ComputedPlan, Confs, QueryWrite, SessionRef, Write
from haproc.route.plan_questions import (
    ROWS,
    ColumnTypes,
    may_hold_texts,
    text_over,
    text_question,
    with_text,
)

# Appends of rows that are in the plan itself: they need no analysis by Spark.
#
# ``createDataFrame(…).writeTo("t").append()`` is to Spark Connect as INSERT … VALUES is to SQL: the
# rows are the same on every cluster. They are in a ``local_relation``, and PySpark puts the names
# of their columns around it (``to_df``). A plan with any other step, an option, a partitioning or
# another mode is no plain append, and is analyzed like every plan.


MODES: Final = frozenset({Mode.SAVE_APPEND, Mode.INSERT, Mode.APPEND})
_FIELDS: Final = frozenset({"input", "source", "table", "table_name", "mode"})
"""The fields of a plan's write command that has only rows and a target, and no options."""
_SOURCES: Final = frozenset({"", "delta"})
_HIDING: Final = ("udt", "extension<")
"""Parts in the texts of types that show that the real type is hidden."""


def local_rows(plan: Any, reading: PlanReading) -> ColumnTypes | None:
    """Return the columns of a plan's rows, if the plan only appends rows that it contains.

    Otherwise None. ``plan``: already with the rows that its client has sent before. Each column
    comes with a text that contains its type in Arrow, or in Spark, or both.
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
    """True if any of the columns may hold texts, which Spark could convert to another type."""
    return any(may_hold_texts(types) for _, types in columns)


def _columns(local: Any) -> ColumnTypes | None:
    """Return the columns of a local relation; None if Spark might not accept it."""
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
    """Return the columns in a schema's JSON text, as PySpark writes it; None if it is none."""
    try:
        fields = json.loads(text)["fields"]
        return [(str(field["name"]), json.dumps(field["type"])) for field in fields]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# The form of a judged statement in the log: its text, or its query and the target of the rows.


_NAMES: Final = frozenset({TokenKind.WORD, TokenKind.QUOTED_NAME})


def as_written(
    judged: Judged, ref: SessionRef | None, frames: Any = None, confs: Confs = ()
) -> Write:
    """Return the write for the log that a judged statement becomes.

    ``ref``: the client's session, noted if the query needs it. ``frames``: the plan of the text
    with its DataFrames; None if it has none. ``confs``: the session's own settings.
    """
    if judged.treatment is not Treatment.MATERIALISE:
        return SqlText(judged.sql) if frames is None else SparkPlan(with_text(frames, judged.sql))
    cut, rests = judged.cut, ref if judged.of_session else None
    assert cut is not None
    if judged.kind is Kind.MERGE:
        return ComputedPlan(
            _query(source_query(cut), frames), _merge(cut, placeholder()), rests, confs
        )
    head = cut.head.rstrip() + "\n"
    if frames is None:
        return QueryWrite(head + cut.query, len(head), judged.of_session, rests, confs)
    return ComputedPlan(_query(cut.query, frames), text_over(head, placeholder()), rests, confs)


def source_query(cut: Cut) -> str:
    """Return the query whose rows are those of a MERGE's source, with the same columns."""
    return f"SELECT * FROM ({cut.query}\n)"


def merge_over(cut: Cut, relation: Any) -> tuple[str, SparkPlan]:
    """Return the MERGE with ``relation`` in place of its source: its text, and a plan to read."""
    plan = protos.base.Plan()
    merge = wire.parsed(protos.base.Plan, _merge(cut, relation))
    plan.root.CopyFrom(merge.command.sql_command.input)
    return plan.root.with_relations.root.sql.query, SparkPlan(plan.SerializeToString())


def _merge(cut: Cut, relation: Any) -> bytes:
    name = _free_name(cut.head + cut.tail)
    plan = protos.base.Plan()
    statement = plan.command.sql_command.input.with_relations
    called = f" AS {quote_name(cut.alias)}" if cut.alias else ""
    # Line breaks, because a piece may end in a comment.
    source = f"(SELECT * FROM {name}){called}"
    statement.root.sql.query = f"{cut.head}\n{source}\n{cut.tail}"
    reference = statement.references.add().subquery_alias
    reference.alias = name
    reference.input.CopyFrom(relation)
    return bytes(plan.SerializeToString())


def _query(text: str, frames: Any) -> bytes:
    if frames is None:
        relation = protos.relations.Relation()
        relation.sql.query = text
        return bytes(relation.SerializeToString())
    plan = wire.parsed(protos.base.Plan, text_question(frames, text, rows=True))
    return bytes(plan.root.SerializeToString())


def _free_name(text: str) -> str:
    """Return a name for the rows that no word of the text equals.

    The rows become a temporary view, which would hide a table of its name.
    """
    words = {t.text.lower().strip("`") for t in tokenize(text) if t.kind in _NAMES}
    name = ROWS
    while name in words:
        name += "_"
    return name
