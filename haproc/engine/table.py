"""What the engine reads about tables: columns, transaction markers, checksums, commits."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from haproc.classify.names import OWN_SCHEMAS
from haproc.engine import arrow, confs
from haproc.engine.commits import Commit, Newest
from haproc.engine.confs import quoted_name
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Named, Session, Settings, Sort, TableState
from haproc.engine.pieces import CATALOG
from haproc.engine.remote import RemoteSession
from haproc.engine.statement import SqlText, sql_plan
from haproc.failure import ErrorClass
from haproc.pin.sqltypes import quote_name

# Spark's type text (``decimal(10,2)``, ``array<bigint>``) from the protocol's type messages.


_PLAIN = {
    "null": "void",
    "binary": "binary",
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "calendar_interval": "interval",
    "variant": "variant",
}
_YEAR_MONTH = ("year", "month")
_DAY_TIME = ("day", "hour", "minute", "second")


def type_text(data_type: Any) -> str:
    """Return the name of a Spark type, as DESCRIBE shows it."""
    kind = data_type.WhichOneof("kind")
    if kind in _PLAIN:
        return _PLAIN[kind]
    detail: Any = getattr(data_type, kind) if kind else None
    match kind:
        case "string":
            default = detail.collation in ("", "UTF8_BINARY")
            return "string" if default else f"string collate {detail.collation}"
        case "char" | "var_char":
            return f"{'char' if kind == 'char' else 'varchar'}({detail.length})"
        case "decimal":
            precision = detail.precision if detail.HasField("precision") else 10
            return f"decimal({precision},{detail.scale})"
        case "array":
            return f"array<{type_text(detail.element_type)}>"
        case "map":
            return f"map<{type_text(detail.key_type)},{type_text(detail.value_type)}>"
        case "struct":
            fields = (
                f"{_name(field.name)}:{type_text(field.data_type)}" for field in detail.fields
            )
            return f"struct<{','.join(fields)}>"
        case "year_month_interval":
            return _interval(detail, _YEAR_MONTH)
        case "day_time_interval":
            return _interval(detail, _DAY_TIME)
        case "time":
            return f"time({detail.precision if detail.HasField('precision') else 6})"
        case _:
            return kind.replace("_", " ") if kind else "unknown"


def _name(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def _interval(detail: Any, units: tuple[str, ...]) -> str:
    start = detail.start_field if detail.HasField("start_field") else 0
    end = detail.end_field if detail.HasField("end_field") else len(units) - 1
    return f"interval {units[start]}" + (f" to {units[end]}" if end != start else "")


# The content of a cluster, as a checksum of each table and view.
#
# Reading every table takes long, so it has two steps. `survey` notes the tables and each Delta
# table's version, while nothing changes; `checksum` reads those versions afterwards. Objects
# without versions are read at once: views (their definitions) and tables of other formats.
#
# A checksum does not depend on the order of rows. It holds their count, the sum of a 64-bit hash of
# each row (unlike an exclusive-or, a sum changes with a repeated row), and the columns' names and
# types. Hashes are summed, not values, so that floats are exact, too.


SETTINGS: Final = Settings(confs=(("spark.sql.legacy.allowHashOnMapType", "true"),))
"""The session settings for checksums. Without this one Spark hashes no maps, because equal maps may
have different orders. Here they don't: all clusters ran the same statements."""
CATALOG_CONFS: Final = "spark.sql.catalog."
SURVEY_TIMEOUT_S: Final = 60.0
_SYSTEM: Final = frozenset({"information_schema", "sys", "global_temp"}) | OWN_SCHEMAS
_AS_TEXT: Final = re.compile(r"\bvariant\b|\bcollate\b")
"""The names of types that are hashed as text: some have no hash, for some `a` and `A` have the same
hash."""
_DEFINING: Final = frozenset({"View Text", "View Catalog and Namespace", "View Schema Mode"})


def catalogs(confs: Iterable[str]) -> list[str]:
    """Return the catalogs of a cluster, from the names of its settings."""
    names = {name.removeprefix(CATALOG_CONFS) for name in confs}
    return sorted({"spark_catalog"} | {name for name in names if "." not in name})


async def survey(session: Session, names: Sequence[str], at_once: int) -> list[TableState]:
    """Return the states of all tables and views in the catalogs ``names``; raises EngineError.

    ``at_once``: the number of objects that are read at the same time.
    """
    await session.configure(SETTINGS)
    permits = asyncio.Semaphore(at_once)

    async def state(name: str, view: bool) -> TableState:
        async with permits:
            if view:
                return TableState(name, checksum=await _definition(session, name))
            version = await _version(session, name)
            if version is not None:
                return TableState(name, version)
            return TableState(name, checksum=await _readable(session, name))

    async def rows(sql: str) -> list[dict[str, Any]]:
        return await rows_in_session(session, sql)

    found = [each for name in names for each in await listed(rows, name)]
    return list(await asyncio.gather(*(state(name, view) for name, view in found)))


async def checksum(session: Session, state: TableState, timeout_s: float) -> str:
    """Return the checksum of a table in the state that `survey` found; raises EngineError."""
    await session.configure(SETTINGS)
    source = state.name if state.version is None else f"{state.name} VERSION AS OF {state.version}"
    columns = await session.columns(f"SELECT * FROM {source}")
    hashed = ", ".join(_hashable(column) for column in columns)
    total = f"sum(CAST(xxhash64({hashed}) AS DECIMAL(38, 0)))" if columns else "0"
    (row,) = await rows_in_session(
        session, f"SELECT count(*) AS n, coalesce({total}, 0) AS h FROM {source}", timeout_s
    )
    schema = "\n".join(f"{c.name} {c.type_text} {c.nullable}" for c in columns)
    return f"{int(row['n'])}:{int(row['h']) % (1 << 64):016x}:{_digest(schema)}"


async def _readable(session: Session, name: str) -> str:
    """Return the checksum of a view or of a table without versions; empty if it is unreadable."""
    try:
        return await checksum(session, TableState(name), SURVEY_TIMEOUT_S)
    except EngineError as error:
        if error.kind is ErrorKind.AVAILABILITY:
            raise
        return ""


Rows = Callable[[str], Awaitable[list[dict[str, Any]]]]
"""A function that runs a SQL query and returns its rows."""


async def listed(rows: Rows, catalog: str) -> list[tuple[str, bool]]:
    """Return the full names of a catalog's tables and views; True with the name: it is a view."""
    found: list[tuple[str, bool]] = []
    inside = quote_name(catalog)
    for row in await rows(f"SHOW NAMESPACES IN {inside}"):
        if row["namespace"] in _SYSTEM:
            continue
        # A namespace of several levels comes as SQL, one of one level as its plain name.
        plain = str(row["namespace"])
        namespace = plain if "." in plain or "`" in plain else quote_name(plain)
        where = f"{inside}.{namespace}"
        views = {row["viewName"] for row in await _shown(rows, f"SHOW VIEWS IN {where}")}
        tables = await rows(f"SHOW TABLES IN {where}")
        names = {row["tableName"] for row in tables if not row["isTemporary"]} | views
        found += [(f"{where}.{quote_name(str(name))}", name in views) for name in sorted(names)]
    return found


async def _shown(rows: Rows, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a SHOW statement; none if the catalog cannot list such objects."""
    try:
        return [row for row in await rows(sql) if not row["isTemporary"]]
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:
            return []
        raise


async def _version(session: Session, name: str) -> int | None:
    """Return the newest version of a Delta table; None for a table in another format."""
    try:
        rows = await rows_in_session(session, f"DESCRIBE HISTORY {name} LIMIT 1")
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:
            return None
        raise
    return int(rows[0]["version"]) if rows else None


async def _definition(session: Session, name: str) -> str:
    """Return a checksum of a view's definition."""
    rows = await rows_in_session(session, f"DESCRIBE TABLE EXTENDED {name}")
    names = [str(row["col_name"]) for row in rows]
    columns = rows[: names.index("")] if "" in names else rows
    rows_used = [*columns, *(row for row in rows if row["col_name"] in _DEFINING)]
    text = "\n".join(f"{row['col_name']} {row['data_type']}" for row in rows_used)
    return f"view:{_digest(text)}"


def _hashable(column: Column) -> str:
    name = quote_name(column.name)
    return f"to_json(struct({name}))" if _AS_TEXT.search(column.type_text) else name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def rows_in_session(
    session: Session, sql: str, timeout_s: float = SURVEY_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Return the rows of a query that has a small result."""
    async with contextlib.aclosing(
        await session.query(SqlText(sql), timeout_s=timeout_s)
    ) as result:
        return [row async for chunk in result for row in arrow.rows([chunk.data])]


# The engine's questions about tables: their columns, and their last transaction marker.


HISTORY_TIMEOUT_S = 60.0
"""The deadline for reading a table's history. Chosen: one of 64 commits takes 0.3 s on a quiet
machine."""
WAIT_S_MAX = 3600.0
"""The total time for which a statement may wait for a busy cluster. Chosen."""


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of a schema message."""
    return [
        Column(field.name, type_text(field.data_type), field.nullable)
        for field in schema.struct.fields
    ]


def metadata_of(schema: Any) -> frozenset[str]:
    """Return the metadata keys that the fields of a schema message have, at any depth."""
    found: set[str] = set()
    below = [schema]
    while below:
        kind = below.pop()
        for field in kind.struct.fields:
            found.update(json.loads(field.metadata) if field.metadata else ())
            below.append(field.data_type)
        below += [kind.array.element_type] if kind.HasField("array") else []
        below += [kind.map.key_type, kind.map.value_type] if kind.HasField("map") else []
    return frozenset(found)


async def all_rows(
    remote: RemoteSession, query: str | Any, timeout_s: float | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a query (a text or a plan); raises EngineError.

    ``timeout_s``: by default the deadline of small statements.
    """
    found = each_row(remote, query, timeout_s or remote.small_timeout_s)
    return [row async for row in found]


async def each_row(
    remote: RemoteSession,
    query: str | Any,
    timeout_s: float,
    *,
    operation_id: str = "",
    receive: Callable[[Any], None] = lambda _: None,
) -> AsyncIterator[dict[str, Any]]:
    """Run a query, a text or a plan, and yield its rows; for small results.

    ``receive`` is called with each message.
    """
    plan = sql_plan(query) if isinstance(query, str) else query
    async with contextlib.aclosing(
        remote.execute(plan, operation_id or str(uuid.uuid4()), timeout_s)
    ) as responses:
        async for response in responses:
            receive(response)
            if response.HasField("arrow_batch"):
                for row in arrow.rows([response.arrow_batch.data]):
                    yield row


async def rows_in_turn(
    remote: RemoteSession, query: str | Any, timeout_s: float
) -> list[dict[str, Any]]:
    """Return the rows of a query (a text or a plan); raises EngineError.

    ``timeout_s`` begins again while the cluster is busy with other statements of HAProc.
    """
    wait, operation_id = remote.channel.tasks.wait(), str(uuid.uuid4())

    async def read() -> list[dict[str, Any]]:
        found = each_row(
            remote, query, WAIT_S_MAX, operation_id=operation_id, receive=wait.report.receive
        )
        return [row async for row in found]

    reading = asyncio.ensure_future(read())
    try:
        while not (await asyncio.wait({reading}, timeout=timeout_s))[0]:
            if not wait.is_excused():
                wait.is_over(answered=False)
                raise _late(timeout_s, is_held=wait.is_held)
        rows = await reading
        wait.is_over(answered=True)
        return rows
    finally:
        if not reading.done():
            remote.stop_soon(operation_id)
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _late(timeout_s: float, *, is_held: bool) -> EngineError:
    message = f"The cluster did not answer within {timeout_s} s"
    if not is_held:
        return EngineError(ErrorKind.AVAILABILITY, message, error_class="DEADLINE_EXCEEDED")
    message += ": tasks of cancelled statements hold its cores, until Spark has ended them"
    return EngineError(ErrorKind.AVAILABILITY, message, error_class=ErrorClass.CORES_HELD)


async def single_row(remote: RemoteSession, sql: str) -> dict[str, Any]:
    """Return the one row that a small query gives."""
    return (await all_rows(remote, sql))[0]


async def last_version(
    remote: RemoteSession, table: str, application: str, history_rows: int
) -> int | None:
    """Return the highest version in a Delta table's transaction markers; None if it has none.

    ``application``: only its markers count. ``table``: the name as SQL has it. SQL cannot read a
    marker itself, but the note in the same commit (confs.user_metadata). The newest note is the
    highest. The whole history is read only if the newest commits have no note. Raises EngineError,
    also if it is no Delta table.
    """
    for limit in (f" LIMIT {history_rows}", ""):
        versions, commits = [], 0
        async for row in each_row(remote, f"DESCRIBE HISTORY {table}{limit}", HISTORY_TIMEOUT_S):
            commits += 1
            found = confs.version_in(row["userMetadata"] or "", application)
            if found is not None:
                versions.append(found)
        if versions or commits < history_rows:
            break
    return max(versions, default=None)


# The commits of a cluster's Delta tables.


FINGERPRINTS_AT_ONCE: Final = 200
"""The number of tables whose newest commits one call reads. Chosen: a second at 5 ms each."""
_DELTA: Final = re.compile(r"([0-9]+)@([0-9]+)")


class SparkHistories:
    """Implements Histories over Spark Connect.

    ``in_session`` makes a call that depends on no session's state; ``object_fingerprint`` is that
    of the engine.
    """

    def __init__(
        self,
        in_session: Callable[[Callable[[RemoteSession], Awaitable[Any]]], Awaitable[Any]],
        object_fingerprint: Callable[[Sequence[Named]], Awaitable[str]],
    ) -> None:
        self._in_session = in_session
        self._object_fingerprint = object_fingerprint

    async def newest(self) -> Mapping[str, Newest]:
        """Return, by full name, the newest commit of each Delta table; Spark runs no task."""
        names = [name for name, is_view in await listed(self._rows, CATALOG) if not is_view]
        found: dict[str, Newest] = {}
        for first in range(0, len(names), FINGERPRINTS_AT_ONCE):
            some = names[first : first + FINGERPRINTS_AT_ONCE]
            text = await self._object_fingerprint([Named(Sort.TABLE, name) for name in some])
            for name, found_text in zip(some, text.split("/"), strict=True):
                if newest := _DELTA.fullmatch(found_text):
                    found[name] = Newest(int(newest[1]), int(newest[2]))
        return found

    async def commits(self, table: str, count: int) -> Sequence[Commit]:
        """Return a table's ``count`` newest commits, newest first; empty if it does not exist."""
        try:
            rows = await self._rows(f"DESCRIBE HISTORY {quoted_name(table)} LIMIT {count}")
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            return ()
        return [
            Commit(
                int(row["version"]),
                int(row["timestamp"].timestamp() * 1000),
                str(row["operation"] or ""),
                str(row["userName"] or row["userId"] or ""),
                str(row["engineInfo"] or ""),
                str(row["userMetadata"] or ""),
            )
            for row in rows
        ]

    async def _rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._in_session(
            lambda own: all_rows(own, sql, HISTORY_TIMEOUT_S)
        )
        return found
