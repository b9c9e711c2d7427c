"""SQL commands of Spark Connect: their text, and their arguments bound into it.

Delta's SQL extension drops Spark's own parameters, and a statement in the log stands alone; so
arguments become typed literals in the text, for queries too, which are then run as such a text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from haproc.classify.plans.reading import SqlPart
from haproc.classify.plans.relations import has_sql
from haproc.failure import ErrorClass, refused
from haproc.pin.parameters import Given

_EPOCH: Final = datetime(1970, 1, 1)
_OF_LITERAL: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "boolean": ("BOOLEAN", lambda value: str(value).lower()),
    "byte": ("TINYINT", str),
    "short": ("SMALLINT", str),
    "integer": ("INT", str),
    "long": ("BIGINT", str),
    "float": ("FLOAT", repr),
    "double": ("DOUBLE", repr),
    "string": ("STRING", str),
    "binary": ("BINARY", lambda value: base64.b64encode(value).decode()),
    "date": ("DATE", lambda value: str(date(1970, 1, 1) + timedelta(days=value))),
    "timestamp": (
        "TIMESTAMP",
        lambda value: (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=UTC).isoformat(),
    ),
    "timestamp_ntz": (
        "TIMESTAMP_NTZ",
        lambda value: (_EPOCH + timedelta(microseconds=value)).isoformat(),
    ),
}


def given(part: SqlPart) -> Given | None:
    """Return a text's arguments; None: there are none. Raises RequestError."""
    if not part.positional and not part.named:
        return None
    entries = [_entry(None, value, at) for at, value in enumerate(part.positional, 1)]
    entries += [_entry(name, value) for name, value in part.named]
    return Given(json.dumps(entries).encode())


def _entry(name: str | None, value: Any, at: int = 0) -> dict[str, Any]:
    literal = value.literal if value.DESCRIPTOR.name == "Expression" else value
    kind = literal.WhichOneof("literal_type")
    entry: dict[str, Any] = {} if name is None else {"name": name}
    if kind == "null":
        return {**entry, "value": None}
    if kind == "decimal":
        decimal = literal.decimal
        return {**entry, "value": decimal.value, "type": _decimal_type(decimal)}
    if kind not in _OF_LITERAL:
        raise refused(
            ErrorClass.PARAMETERS,
            f"{_called(name, at)} is {kind or 'an expression'}, not a plain value",
            "write it into the text, or give a number, text, date, timestamp, decimal or binary",
        )
    type_text, written = _OF_LITERAL[kind]
    return {**entry, "value": written(getattr(literal, kind)), "type": type_text}


def _called(name: str | None, at: int) -> str:
    return f"argument {at}" if name is None else f"the argument {name}"


def _decimal_type(decimal: Any) -> str:
    if decimal.HasField("precision") and decimal.HasField("scale"):
        return f"DECIMAL({decimal.precision},{decimal.scale})"
    return "DECIMAL"


def as_command(plan: Any) -> Any:
    """Return a SQL text that is a plan's root as the command that runs it; other plans as they are.

    Clients in other languages send every statement so. Spark runs either, whatever the text does;
    only the answers differ: a root's is its rows.
    """
    if plan.WhichOneof("op_type") != "root" or not has_sql(plan.root):
        return plan
    command = type(plan)()
    command.command.sql_command.input.CopyFrom(plan.root)
    return command


def with_text(plan: Any, text: str) -> Any:
    """Return a SQL command's plan, or one whose root is SQL, with another text and no arguments."""
    changed = type(plan)()
    changed.CopyFrom(plan)
    command = changed.command.sql_command
    is_root = changed.WhichOneof("op_type") == "root"
    if not is_root and not command.HasField("input"):
        command.sql = text
        for name in ("args", "pos_args", "named_arguments", "pos_arguments"):
            command.ClearField(name)
        return changed
    root = changed.root if is_root else command.input
    if root.WhichOneof("rel_type") == "with_relations":
        root = root.with_relations.root
    common = root.common
    root.sql.Clear()
    root.sql.query = text
    if common.ByteSize():
        root.common.CopyFrom(common)
    return changed


def has_relations(plan: Any) -> bool:
    """Tell whether a SQL command's text comes with DataFrames that it reads."""
    return bool(plan.command.sql_command.input.WhichOneof("rel_type") == "with_relations")


def plan_id(plan: Any) -> int | None:
    """Return the number that the client gave a SQL command's relation."""
    common = plan.command.sql_command.input.common
    return int(common.plan_id) if common.HasField("plan_id") else None
