"""SQLAlchemy's dialect: an engine's URL, connecting, statements, and reflection of tables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import exc, schema, types
from sqlalchemy.engine import URL, default, reflection
from sqlalchemy.exc import ArgumentError

import haclient
from haclient import columns
from haclient.settings import VARIABLES, tls_options
from haclient.sqlalchemy.compiler import (
    HAProcCompiler,
    HAProcDDLCompiler,
    HAProcIdentifierPreparer,
    HAProcTypeCompiler,
)
from haclient.sqlalchemy.types import TextTime, of_arrow

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIModule

# An engine's URL as the options of `haclient.connect`.


_TEXTS = frozenset({"catalog", "order", "consistency", "token", "user", "schema", *VARIABLES})
"""Options of the URL that stay text, even if they look like a number."""


def connect_options(url: URL, token: str | None) -> dict[str, Any]:
    """Return the options in ``haproc://[USER[:TOKEN]@]HOST[,…][:PORT][/SCHEMA][?OPTION=VALUE&…]``.

    SQLAlchemy reads one port, which is that of all hosts. A host with another port, or an IPv6
    address, is an option ``host``, which may be repeated. ``tls=true``: use HTTPS. ``token``: used
    if the URL has none. All other options are those of `haclient.connect`, which checks them.
    """
    options: dict[str, Any] = {}
    further: list[str] = []
    scheme = "http"
    for name, value in url.query.items():
        if name == "host":
            further += [value] if isinstance(value, str) else value
        elif not isinstance(value, str):
            raise ArgumentError(f"the option {name} stands more than once in the engine's URL")
        elif name == "tls":
            if value not in ("true", "false"):
                raise ArgumentError(f"tls is true or false in the engine's URL, not {value!r}")
            scheme = "https" if value == "true" else "http"
        else:
            options[name] = _typed(name, value)
    hosts = [*(each for each in (url.host or "").split(",") if each), *further]
    given = {
        "user": url.username or None,
        "token": url.password or token or None,
        "schema": url.database or None,
    }
    return {
        "servers": [f"{scheme}://{_with_port(each, url.port)}" for each in hosts],
        **options,
        **{name: value for name, value in given.items() if value is not None},
    }


def _with_port(host: str, port: int | None) -> str:
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port or port is None else f"{host}:{port}"


def _typed(name: str, value: str) -> Any:
    if name in _TEXTS:
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


# The dialect: connecting, running statements, and reflection by SHOW and DESCRIBE.


MISSING = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"})
"""Spark's error classes for a missing table or schema."""
AUTOCOMMIT = "AUTOCOMMIT"

Row = tuple[str, str, str]
Method = TypeVar("Method", bound=Callable[..., Any])


def cached(method: Method) -> Method:
    """Let SQLAlchemy's inspector remember a method's answers.

    SQLAlchemy 1.4 fails if the method has annotations, so they are removed.
    """
    method.__annotations__ = {}
    return reflection.cache(method)


def section(described: Sequence[Row], heading: str) -> list[Row]:
    """Return the rows of DESCRIBE from below a heading to the next blank row."""
    found = [at for at, row in enumerate(described) if row[0] == heading]
    rest = described[found[-1] + 1 :] if found else ()
    return list(itertools.takewhile(lambda row: row[0], rest))


def _drop_count(cursor: Any, context: Any) -> None:
    """Discard the result row of an UPDATE or DELETE: ``rowcount`` has the same number."""
    if context is not None and (context.isupdate or context.isdelete):
        cursor.description = None


class HAProcDialect(default.DefaultDialect):
    """SQLAlchemy's dialect for a ring."""

    name = "haproc"
    driver = "haclient"
    statement_compiler = HAProcCompiler
    ddl_compiler = HAProcDDLCompiler
    # Under this name SQLAlchemy 1.4 finds it, too.
    type_compiler = HAProcTypeCompiler
    preparer = HAProcIdentifierPreparer  # type: ignore[assignment]
    construct_arguments = [  # noqa: RUF012
        (schema.Table, {"using": "delta", "partitioned_by": ()}),
    ]
    colspecs = {types.Time: TextTime}  # noqa: RUF012
    default_paramstyle = "qmark"

    supports_statement_cache = True
    supports_alter = False  # foreign keys that form a circle are left out, too
    supports_multivalues_insert = True
    supports_native_boolean = True
    supports_native_decimal = True
    returns_native_bytes = True
    supports_comments = True
    inline_comments = True
    supports_empty_insert = False
    postfetch_lastrowid = False
    cte_follows_insert = True
    div_is_floordiv = False

    @classmethod
    def import_dbapi(cls) -> DBAPIModule:
        """Return the DB-API module `haclient`."""
        return haclient  # type: ignore[return-value]

    dbapi = import_dbapi  # type: ignore[assignment]  # SQLAlchemy 1.4 uses this name

    # -- connecting ------------------------------------------------------------------------

    def create_connect_args(self, url: URL) -> tuple[Sequence[str], dict[str, Any]]:
        """Return the arguments with which SQLAlchemy calls `haclient.connect`."""
        options = connect_options(url, os.environ.get("HACLIENT_TOKEN"))
        return [], {**options, **tls_options(os.environ, options)}

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """True if the connection cannot be used any more after the error ``e``.

        It survives the failure of a server. Only a closed session never comes back.
        """
        return getattr(e, "error_class", "") == "HAPROC_SESSION_CLOSED"

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Do nothing: each statement is final, and cannot be undone."""

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """Return AUTOCOMMIT, the only level."""
        return AUTOCOMMIT

    get_default_isolation_level = get_isolation_level

    def get_isolation_level_values(self, dbapi_conn: Any) -> Sequence[Any]:
        """Return AUTOCOMMIT, the only level."""
        return (AUTOCOMMIT,)

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        """Accept AUTOCOMMIT; raise ArgumentError for any other level."""
        if level != AUTOCOMMIT:
            raise exc.ArgumentError(f"the isolation level is {AUTOCOMMIT}, and cannot be {level}")

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Run a statement; skip an empty one, which stands for what Spark does not have."""
        if statement or context is None or not context.isddl:
            cursor.execute(statement, parameters)
        _drop_count(cursor, context)

    def do_executemany(
        self, cursor: Any, statement: str, parameters: Any, context: Any = None
    ) -> None:
        """Run a statement with each set of parameters; an INSERT with all sets at once."""
        cursor.executemany(statement, parameters)
        _drop_count(cursor, context)

    # -- reflection ------------------------------------------------------------------------

    def _get_default_schema_name(self, connection: Any) -> str:
        return str(connection.exec_driver_sql("SELECT current_schema()").scalar())

    @cached
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Return the names of the catalog's schemas."""
        return [row[0] for row in connection.exec_driver_sql("SHOW SCHEMAS")]

    @cached
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the names of a schema's tables."""
        views = set(self.get_view_names(connection, schema, **kw))
        tables = self._shown(connection, "TABLES", schema, temporary=False)
        return [name for name in tables if name not in views]

    @cached
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the names of a schema's views."""
        return self._shown(connection, "VIEWS", schema, temporary=False)

    @cached
    def get_temp_view_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Return the names of the temporary views in the connection's session."""
        return self._shown(connection, "VIEWS", schema, temporary=True)

    def _shown(
        self, connection: Any, what: str, schema: str | None, *, temporary: bool
    ) -> list[str]:
        place = f" IN {self.identifier_preparer.quote_schema(schema)}" if schema else ""
        rows = connection.exec_driver_sql(f"SHOW {what}{place}")
        return [name for _, name, is_temporary, *_ in rows if is_temporary == temporary]

    @cached
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if there is such a table or view."""
        try:
            self._described(connection, table_name, schema, **kw)
        except exc.NoSuchTableError:
            return False
        return True

    @cached
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return a table's columns, with types and nullability from the result of a query.

        DESCRIBE gives the comments and defaults, but it cuts long types short.
        """
        described = self._described(connection, table_name, schema, **kw)
        defaults = {name: text for name, _, text in section(described, "# Column Default Values")}
        result = connection.exec_driver_sql(
            f"SELECT * FROM {self._name(table_name, schema)} LIMIT 0"
        )
        fields = result.cursor.fetch_arrow_table().schema
        result.close()
        return [
            {
                "name": field.name,
                "type": of_arrow(field.type, columns.is_variant(field)),
                "nullable": field.nullable,
                "default": defaults.get(field.name),
                "comment": comment or None,
            }
            for field, (_, _, comment) in zip(fields, described, strict=False)
        ]

    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """Return a primary key without columns. Raises NoSuchTableError."""
        self._described(connection, table_name, schema, **kw)
        return {"constrained_columns": [], "name": None}

    def _none(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return an empty list: Spark has no keys and indexes. Raises NoSuchTableError."""
        self._described(connection, table_name, schema, **kw)
        return []

    get_foreign_keys = get_indexes = get_unique_constraints = get_check_constraints = _none

    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """Return the comment of a table or view. Raises NoSuchTableError."""
        return {"text": self._detail(connection, table_name, schema, "Comment", **kw) or None}

    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        """Return the SQL query of a view."""
        text = self._detail(connection, view_name, schema, "View Text", **kw)
        if text is None:
            raise exc.NoSuchTableError(f"{self._name(view_name, schema)} is no view")
        return text

    def _detail(
        self, connection: Any, table_name: str, schema: str | None, what: str, **kw: Any
    ) -> str | None:
        described = self._described(connection, table_name, schema, **kw)
        details = section(described, "# Detailed Table Information")
        return next((value for name, value, _ in details if name == what), None)

    @cached
    def _described(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Row]:
        """Return the rows of DESCRIBE; the columns come first. Raises NoSuchTableError."""
        name = self._name(table_name, schema)
        try:
            rows = connection.exec_driver_sql(f"DESCRIBE TABLE EXTENDED {name}")
        except exc.DBAPIError as error:
            if getattr(error.orig, "error_class", "") in MISSING:
                raise exc.NoSuchTableError(name) from error
            raise
        return [tuple(row) for row in rows]

    def _name(self, table_name: str, schema: str | None) -> str:
        quote = self.identifier_preparer.quote_identifier
        return ".".join(quote(part) for part in (schema, table_name) if part)
