"""The object that has a name: a table, a view, a function, a schema, or nothing.

No error of a statement proves that a table does not exist: unreachable files look the same. The
catalog's list of names proves it, without access to the tables' files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from haproc.classify.names import STAGING_SCHEMA
from haproc.engine.confs import parts_of, quoted, quoted_name
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ABSENT, PRESENT, UNREADABLE, Column, Named, Sort
from haproc.engine.pieces import CATALOG
from haproc.engine.remote import RemoteSession
from haproc.engine.server import Marker
from haproc.engine.statement import fingerprint_plan, table_relation
from haproc.engine.table import (
    HISTORY_TIMEOUT_S,
    all_rows,
    columns_of,
    metadata_of,
    rows_in_turn,
    single_row,
)

_PLAIN_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "clustering", "domainMetadata", "timestampNtz"}
)
"""Delta features of tables that store rows exactly as given, and nothing besides. A check refuses
rows, and changes none."""


_PLAIN_PARTITIONS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "boolean", "date"})
"""Types of partition columns with values that can be read back from the text in a partition's name.
An empty text cannot: Delta makes NULL of it."""


_COMMIT: Final = re.compile(r"[0-9]++@[0-9]++")


class What(Enum):
    """The kind of the object that has a table's name, if it is no readable Delta table."""

    NOTHING = auto()
    VIEW = auto()
    OTHER_FORMAT = auto()
    UNREADABLE = auto()


async def what_is(remote: RemoteSession, name: str) -> What:
    """Return the kind of an object that could not be read as a Delta table; asks the catalog."""
    described = await _rows(remote, f"DESCRIBE TABLE EXTENDED {quoted_name(name)}")
    if described is None:
        known = await _in_catalog(remote, parts_of(name))
        return What.UNREADABLE if known else What.NOTHING
    return _described(described)


def _described(rows: Sequence[dict[str, Any]] | None) -> What:
    """Return the kind of an object from the rows of DESCRIBE; it is no readable Delta table.

    ``rows``: None if DESCRIBE failed.
    """
    if rows is None:
        return What.UNREADABLE
    values = {row["col_name"]: row["data_type"] for row in rows}
    if values.get("Type") == "VIEW":
        return What.VIEW
    delta = str(values.get("Provider", "")).lower() == "delta"
    return What.UNREADABLE if delta else What.OTHER_FORMAT


async def is_delta(remote: RemoteSession, name: str) -> bool:
    """True if the catalog says that the name is a Delta table. Spark runs no task for that."""
    described = await _rows(remote, f"DESCRIBE TABLE EXTENDED {quoted_name(name)}")
    values = {row["col_name"]: row["data_type"] for row in described or ()}
    return values.get("Type") != "VIEW" and str(values.get("Provider", "")).lower() == "delta"


async def plain_columns(remote: RemoteSession, name: str) -> Sequence[Column] | None:
    """Return a Delta table's columns if it stores rows exactly as given; otherwise None."""
    try:
        detail = await single_row(remote, f"DESCRIBE DETAIL {quoted_name(name)}")
        schema = await remote.schema(table_relation(quoted_name(name)))
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None
    delta = detail["format"] == "delta" and set(detail["tableFeatures"] or ()) <= _PLAIN_FEATURES
    columns, partitions = columns_of(schema), set(detail["partitionColumns"] or ())
    as_given = all(c.type_text in _PLAIN_PARTITIONS for c in columns if c.name in partitions)
    # CHAR and VARCHAR, collations and defaults are in the metadata of columns.
    return columns if delta and as_given and metadata_of(schema) <= {"comment"} else None


async def check_readable(remote: RemoteSession, name: str) -> None:
    """Raise EngineError if there is a table of this name that cannot be read."""
    try:
        await remote.schema(table_relation(quoted_name(name)))
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        if await what_is(remote, name) in (What.UNREADABLE, What.OTHER_FORMAT):
            raise unreadable(name, error) from error


def unreadable(name: str, error: EngineError) -> EngineError:
    """Return the error of a table that exists and cannot be read."""
    return EngineError(
        ErrorKind.ENVIRONMENT,
        f"the catalog knows {name}, but it cannot be read: {error.message}",
        error_class=error.error_class,
        sqlstate=error.sqlstate,
    )


async def fingerprint(remote: RemoteSession, marker: Marker, named: Sequence[Named]) -> str:
    """Return the fingerprint of the objects: a text that changes when any of them changes.

    It has one part for each name, with slashes between: ABSENT if there is no such object; the
    newest commit of a Delta table (it has an @); a hash of the description of every other object;
    PRESENT for a table if its content is not asked for.
    """
    names = [(each.sort.value, parts_of(each.name), each.content) for each in named]
    plan = fingerprint_plan(await marker.folder(remote), names)
    (row,) = await rows_in_turn(remote, plan, remote.small_timeout_s)
    answer = json.loads(str(*row.values()))
    found = [
        await _fingerprint_part(remote, each) if text is None else _shortened(text)
        for each, text in zip(named, answer["standing"], strict=True)
    ]
    await marker.look(remote, answer["files"])
    return "/".join(found)


async def _fingerprint_part(remote: RemoteSession, named: Named) -> str:
    """Return one object's part of the fingerprint, for a catalog that the plugin cannot read."""
    name = quoted_name(named.name)
    if named.sort is Sort.FUNCTION:
        return _hash(await _rows(remote, f"DESCRIBE FUNCTION EXTENDED {name}"))
    if named.sort is Sort.NAMESPACE:
        return _hash(await _rows(remote, f"DESCRIBE SCHEMA EXTENDED {name}"))
    if not await _in_catalog(remote, parts_of(named.name)):
        return ABSENT
    if not named.content:
        return PRESENT
    described = await _rows(remote, f"DESCRIBE TABLE EXTENDED {name}")
    what = _described(described)
    if what is not What.VIEW:
        newest = await _rows(remote, f"DESCRIBE HISTORY {name} LIMIT 1", HISTORY_TIMEOUT_S)
        if newest:
            return f"{newest[0]['version']}@{newest[0]['timestamp']}"
    return UNREADABLE if what is What.UNREADABLE else _hash(described)


async def default_place(remote: RemoteSession, name: str) -> str:
    """Return the folder that a managed table of this name would get; empty if unknown."""
    *namespace, table = parts_of(name)
    where = ".".join(map(quoted, namespace))
    rows = await _rows(remote, f"DESCRIBE SCHEMA EXTENDED {where}")
    values = {row["info_name"]: row["info_value"] for row in rows or ()}
    location = str(values.get("Location") or "").rstrip("/")
    # Other catalogs choose the folder of each table themselves.
    ours = namespace[0].lower() == "spark_catalog" and location
    return f"{location}/{table.lower()}" if ours else ""


async def staged(remote: RemoteSession) -> frozenset[str]:
    """Return the full names of the existing staging tables."""
    where = f"{CATALOG}.{STAGING_SCHEMA}"
    rows = await _rows(remote, f"SHOW TABLES IN {where}")
    return frozenset(f"{where}.{row['tableName']}" for row in rows or ())


async def _in_catalog(remote: RemoteSession, parts: list[str]) -> bool:
    *namespace, table = parts
    pattern = table.replace("\\", "\\\\").replace("'", "\\'")
    where = ".".join(map(quoted, namespace))
    rows = await _rows(remote, f"SHOW TABLES IN {where} LIKE '{pattern}'")
    found = [row for row in rows or () if not row["isTemporary"]]
    return any(row["tableName"].lower() == table.lower() for row in found)


async def _rows(
    remote: RemoteSession, sql: str, timeout_s: float | None = None
) -> list[dict[str, Any]] | None:
    """Return the rows of a query; None if the cluster refuses it."""
    try:
        return await all_rows(remote, sql, timeout_s)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None


def _hash(rows: list[dict[str, Any]] | None) -> str:
    return ABSENT if rows is None else _digest(repr(rows))


def _shortened(text: str) -> str:
    as_it_is = text in (ABSENT, PRESENT, UNREADABLE) or _COMMIT.fullmatch(text)
    return text if as_it_is else _digest(text)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
