"""Calls of ``spark.catalog`` in a plan, and the DataFrames that such a call returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from haproc.classify.allowed import check_property, locates
from haproc.classify.model import Kind
from haproc.classify.names import FILE_SOURCES, refuse_global
from haproc.classify.plans import parsing
from haproc.classify.plans.parsing import Does, PlanFindings, PlanReading, members, name_in

# DataFrames of ``spark.catalog.createTable``: the plan made of them repeats the call.
#
# Spark remembers in its session that the call was made, and uses the table. HAProc creates the
# table on every cluster, by the log. So such a call below other relations, or in a question, means
# only the table: if there is none, Spark reports it.


_CREATES: Final = members("create_table create_external_table")


def as_tables(message: Any) -> bool:
    """Replace calls that create tables by reads of these tables; return True if there was one.

    Such a call in a plan stands for the DataFrame that it returned when it was made.
    """
    if message.DESCRIPTOR.full_name == "spark.connect.Relation":
        kind = message.WhichOneof("rel_type") == "catalog" and message.catalog.WhichOneof(
            "cat_type"
        )
        if kind in _CREATES:
            name = getattr(message.catalog, kind).table_name
            message.read.named_table.unparsed_identifier = name
            return True
    found = False
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            parts = [value]
        elif field.message_type.GetOptions().map_entry:
            parts = [part for part in value.values() if isinstance(part, Message)]
        else:
            parts = list(value)
        for part in parts:
            found = as_tables(part) or found
    return found


# Calls of ``spark.catalog``, each a relation of a plan.
#
# Calls that only read may be anywhere. Spark runs any other one as soon as it meets it, also below
# other relations and in a plan that is only to be explained: so it must be a plan's root.


_CATALOG: Final = "spark_catalog"
READING: Final = members(
    """
    current_database list_databases list_tables list_functions list_columns get_database
    get_table get_function database_exists table_exists function_exists is_cached
    current_catalog list_catalogs list_partitions list_views get_table_properties
    get_create_table_string
    """
)


def read_nested(message: Any, found: PlanFindings) -> None:
    """Collect what a call inside another plan reads; RefusedError if it does more than read."""
    kind = message.WhichOneof("cat_type")
    if kind not in READING:
        raise parsing.refused_nesting(f"spark.catalog's {kind}")
    _look(getattr(message, kind), found)


def read_root(message: Any) -> PlanReading:
    """Return what a call does that is the whole plan; raises RefusedError."""
    kind = message.WhichOneof("cat_type")
    if kind in READING:
        found = PlanFindings()
        _look(getattr(message, kind), found)
        return found.reading(Does.QUERIES, Kind.SHOW)
    if kind not in NAMED:
        raise parsing.refused_unknown(f"the call {kind} of spark.catalog")
    return NAMED[kind](getattr(message, kind))


def _look(message: Any, found: PlanFindings) -> None:
    """Collect the table that a call describes; other calls only return names."""
    found.names_known = False
    fields = message.DESCRIPTOR.fields_by_name
    if "table_name" not in fields:
        return
    if "db_name" in fields and message.HasField("db_name"):  # Spark parses neither
        found.names.add((_CATALOG, message.db_name, message.table_name))
        return
    name = name_in(message.table_name, "is asked about")
    found.names.add(name)
    if len(name) == 2:  # Spark looks there first, not in the session's catalog
        found.names.add((_CATALOG, *name))


def _written(kind: Kind, name: str, found: PlanFindings | None = None) -> PlanReading:
    target = name_in(name, "is written")
    return (found or PlanFindings()).reading(Does.WRITES, kind, target=target)


def _create_table(message: Any) -> PlanReading:
    if message.source and message.source.lower() not in FILE_SOURCES:
        raise parsing.refused_source(message.source, "a table of")
    found = PlanFindings()
    if message.path:
        found.paths.add(message.path)
    _take_properties(message.options, found)
    return _written(Kind.CREATE_TABLE, message.table_name, found)


def _create_database(message: Any) -> PlanReading:
    found = PlanFindings()
    _take_properties(message.properties, found)
    return _written(Kind.CREATE_NAMESPACE, message.db_name, found)


def _take_properties(properties: Mapping[str, str], found: PlanFindings) -> None:
    for key, value in properties.items():
        check_property(key.lower())
        if locates(key):
            found.paths.add(value)


def _named(kind: Kind, field: str = "table_name") -> Callable[[Any], PlanReading]:
    """Return the function that reads a call which writes the object named in ``field``."""
    return lambda message: _written(kind, getattr(message, field))


def _use(message: Any) -> PlanReading:
    name = getattr(message, "db_name", "") or getattr(message, "catalog_name", "")
    target = name_in(name, "is to be used")
    return PlanFindings().reading(Does.CHANGES_SESSION, Kind.USE, target=target)


def _drop_temporary(message: Any) -> PlanReading:
    name = (message.view_name,)
    return PlanFindings().reading(Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW, target=name)


def _drop_global(message: Any) -> PlanReading:
    refuse_global(("global_temp", message.view_name))
    raise AssertionError("a global temporary view was not refused")


def _cache(message: Any) -> PlanReading:
    """Read a call that caches rows; it concerns only the Spark server on which it runs."""
    found, fields = PlanFindings(), message.DESCRIPTOR.fields_by_name
    if "path" in fields:
        found.paths.add(message.path)
    elif "table_name" in fields:
        name = name_in(message.table_name, "is cached")
        refuse_global(name)
        found.names.add(name)
    return found.reading(Does.HOLDS, Kind.CACHE)


NAMED: Final[dict[str, Callable[[Any], PlanReading]]] = {
    "set_current_database": _use,
    "set_current_catalog": _use,
    "drop_temp_view": _drop_temporary,
    "drop_global_temp_view": _drop_global,
    **dict.fromkeys(
        ("cache_table", "uncache_table", "clear_cache", "refresh_table", "refresh_by_path"), _cache
    ),
    "create_table": _create_table,
    "create_external_table": _create_table,
    "recover_partitions": _named(Kind.OTHER_DDL),
    "drop_table": _named(Kind.DROP_TABLE),
    "truncate_table": _named(Kind.TRUNCATE),
    "analyze_table": _named(Kind.ANALYZE),
    "drop_view": _named(Kind.DROP_VIEW, "view_name"),
    "create_database": _create_database,
    "drop_database": _named(Kind.DROP_NAMESPACE, "db_name"),
}
"""The functions that read those calls that do more than read, by the calls' names."""
