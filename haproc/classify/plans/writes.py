"""``df.write`` and ``df.writeTo``: what is written, how, and under which options."""

from __future__ import annotations

from typing import Any, Final

from haproc import protos
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import FILE_SOURCES
from haproc.classify.options import check_property, check_write_option
from haproc.classify.paths import locates
from haproc.classify.plans import expressions, refusals
from haproc.classify.plans.names import name_in
from haproc.classify.plans.reading import Does, Mode, PlanFindings, PlanReading
from haproc.failure import ErrorClass

_V1: Any = protos.commands.WriteOperation
_V2: Any = protos.commands.WriteOperationV2
_SAVE: Final = {
    _V1.SAVE_MODE_UNSPECIFIED: Mode.SAVE_ERROR,
    _V1.SAVE_MODE_ERROR_IF_EXISTS: Mode.SAVE_ERROR,
    _V1.SAVE_MODE_IGNORE: Mode.SAVE_IGNORE,
    _V1.SAVE_MODE_APPEND: Mode.SAVE_APPEND,
    _V1.SAVE_MODE_OVERWRITE: Mode.SAVE_OVERWRITE,
}
_WRITE_TO: Final = {
    _V2.MODE_CREATE: Mode.CREATE,
    _V2.MODE_REPLACE: Mode.REPLACE,
    _V2.MODE_CREATE_OR_REPLACE: Mode.CREATE_OR_REPLACE,
    _V2.MODE_APPEND: Mode.APPEND,
    _V2.MODE_OVERWRITE: Mode.OVERWRITE,
    _V2.MODE_OVERWRITE_PARTITIONS: Mode.OVERWRITE_PARTITIONS,
}
KINDS: Final = {
    **dict.fromkeys(Mode, Kind.CREATE_TABLE_AS),
    Mode.INSERT: Kind.INSERT,
    Mode.APPEND: Kind.INSERT,
    Mode.INSERT_OVERWRITE: Kind.INSERT_OVERWRITE,
    Mode.OVERWRITE: Kind.INSERT_OVERWRITE,
    Mode.OVERWRITE_PARTITIONS: Kind.INSERT_OVERWRITE,
}
_CREATING: Final = frozenset(mode for mode, kind in KINDS.items() if kind is Kind.CREATE_TABLE_AS)
_EVOLVING: Final = frozenset({"mergeschema", "overwriteschema"})
_CONDITION: Final = "replacewhere"


def save(message: Any, found: PlanFindings) -> PlanReading:
    """Return the reading of ``df.write``: of a query where it goes nowhere (``noop``)."""
    expressions.check(message, found)
    if message.WhichOneof("save_type") != "table":
        return _save_elsewhere(message, found)
    if message.source and message.source.lower() not in FILE_SOURCES:
        raise refusals.source(message.source, "a table of")
    if message.mode not in _SAVE:
        raise refusals.unknown(f"a save mode {message.mode}")
    mode = _SAVE[message.mode]
    table = message.table
    if table.save_method == _V1.SaveTable.TABLE_SAVE_METHOD_INSERT_INTO:
        mode = Mode.INSERT_OVERWRITE if mode is Mode.SAVE_OVERWRITE else Mode.INSERT
    elif table.save_method != _V1.SaveTable.TABLE_SAVE_METHOD_SAVE_AS_TABLE:
        raise refusals.unknown(f"a way to save into a table, {table.save_method}")
    return _written(message, mode, table.table_name, found)


def write_to(message: Any, found: PlanFindings) -> PlanReading:
    """Return the reading of ``df.writeTo``."""
    if message.provider and message.provider.lower() not in FILE_SOURCES:
        raise refusals.source(message.provider, "a table of")
    if message.mode not in _WRITE_TO:
        raise refusals.unknown(f"a mode of writeTo, {message.mode}")
    for key in message.table_properties:
        check_property(key.lower())
    return _written(message, _WRITE_TO[message.mode], message.table_name, found)


def _written(message: Any, mode: Mode, table: str, found: PlanFindings) -> PlanReading:
    _take_options(message.options, mode, found)
    expressions.take(message, found)
    evolves = message.with_schema_evolution or any(
        key.lower() in _EVOLVING and value.lower() != "false"
        for key, value in message.options.items()
    )
    return found.reading(
        Does.WRITES,
        KINDS[mode],
        target=name_in(table, "is written"),
        mode=mode,
        kind_if_there=Kind.INSERT if mode is Mode.SAVE_APPEND else None,
        evolves=evolves,
    )


def merge(message: Any, found: PlanFindings) -> PlanReading:
    """Return the reading of ``df.mergeInto``."""
    expressions.take(message, found)
    return found.reading(
        Does.WRITES,
        Kind.MERGE,
        target=name_in(message.target_table_name, "is merged into"),
        evolves=message.with_schema_evolution,
    )


def _take_options(options: Any, mode: Mode, found: PlanFindings) -> None:
    for key, value in options.items():
        name = key.lower()
        if mode in _CREATING and locates(key):
            found.paths.add(value)
        elif mode in _CREATING and name.startswith("delta."):
            check_property(name)
        elif name == _CONDITION:
            found.expressions.append(value)
        elif name not in _EVOLVING:
            check_write_option(name)


def _save_elsewhere(message: Any, found: PlanFindings) -> PlanReading:
    """``save()``: to a path, or to a source that keeps what it is given, or nowhere."""
    path = message.path if message.WhichOneof("save_type") == "path" else ""
    path = path or next((v for key, v in message.options.items() if locates(key)), "")
    if message.source.lower() == "noop" and not path:
        return found.reading(Does.QUERIES, Kind.SELECT)
    if not message.source or message.source.lower() in FILE_SOURCES:
        raise refusals.files(f"save({path!r}) writes files")
    raise RefusedError(
        ErrorClass.SOURCE,
        f"save() to {message.source[:80]!r} writes to another system, from one cluster or from all",
        "write to a table; what another system should get, send to it from your program",
    )
