"""Turns SQLAlchemy's statements, definitions and types into Spark's SQL.

Spark enforces no keys and has no indexes: primary and foreign keys and plain indexes are left out
of definitions, and unique ones are refused.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any

from sqlalchemy import exc, types
from sqlalchemy.schema import DefaultClause
from sqlalchemy.sql import compiler

DECIMAL_DEFAULT = "DECIMAL(38, 18)"
"""The type for a Numeric without digits: Spark's own DECIMAL has none after the point."""
_SINGLE_BITS_MAX = 24
_MAPPED_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Delta allows these characters in a column's name only with column mapping."""


class HAProcIdentifierPreparer(compiler.IdentifierPreparer):
    """Writes names in backquotes."""

    legal_characters = re.compile(r"[A-Z0-9_]+\Z", re.IGNORECASE)

    def __init__(self, dialect: Any, **options: Any) -> None:
        super().__init__(dialect, initial_quote="`", escape_quote="`", **options)


class HAProcCompiler(compiler.SQLCompiler):
    """Writes statements in Spark's SQL."""

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """Return LIMIT and OFFSET; in Spark each can be used without the other."""
        text = ""
        if select._limit_clause is not None:
            text += "\n LIMIT " + self.process(select._limit_clause, **kw)
        if select._offset_clause is not None:
            text += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return text

    def render_literal_value(self, value: Any, type_: Any) -> str:
        """Return a value as a literal, with backslashes doubled, as Spark needs them."""
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        text: str = super().render_literal_value(value, type_)
        if isinstance(value, datetime):
            return f"{'TIMESTAMP_NTZ' if value.tzinfo is None else 'TIMESTAMP'}{text}"
        if isinstance(value, date):
            return f"DATE{text}"
        # Whatever the value is in Python: an Enum and a type's own processor make texts, too.
        return text.replace("\\", "\\\\")

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """Return a query that gives no rows, for an empty list behind IN."""
        return f"SELECT {', '.join('NULL' for _ in element_types)} WHERE 1 != 1"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Return the expression that matches a regular expression."""
        _no_flags(binary)
        return self._generate_generic_binary(binary, " RLIKE ", **kw)

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Return the expression that negates such a match."""
        _no_flags(binary)
        return self._generate_generic_binary(binary, " NOT RLIKE ", **kw)


def _no_flags(binary: Any) -> None:
    """Raise CompileError if a regular expression has flags: Spark has them in the pattern."""
    if binary.modifiers.get("flags") is not None:
        raise exc.CompileError(
            "regexp_match has no flags in Spark: write them as (?i) in the pattern"
        )


class HAProcDDLCompiler(compiler.DDLCompiler):
    """Writes CREATE, ALTER and DROP in Spark's SQL.

    Tables are Delta tables, unless ``Table(…, haproc_using="parquet")`` says otherwise.
    """

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """Return the definition of a column, with its comment."""
        text = super().get_column_specification(column, **kw)
        return text if column.comment is None else f"{text} COMMENT {self._text(column.comment)}"

    def post_create_table(self, table: Any) -> str:
        """Return the clauses that stand behind the columns of CREATE TABLE."""
        options = table.dialect_options["haproc"]
        text = f"\nUSING {options['using']}"
        if options["partitioned_by"]:
            names = ", ".join(self.preparer.quote(name) for name in options["partitioned_by"])
            text += f"\nPARTITIONED BY ({names})"
        if table.comment is not None:
            text += f"\nCOMMENT {self._text(table.comment)}"
        return text + self._properties(table) if options["using"] == "delta" else text

    def _properties(self, table: Any) -> str:
        """Return the table properties without which Delta refuses the table's columns."""
        needed = []
        if any(isinstance(column.server_default, DefaultClause) for column in table.columns):
            needed.append("'delta.feature.allowColumnDefaults' = 'supported'")
        if any(_MAPPED_IN_NAMES.intersection(column.name) for column in table.columns):
            needed.append("'delta.columnMapping.mode' = 'name'")
        return f"\nTBLPROPERTIES ({', '.join(needed)})" if needed else ""

    def create_table_select_suffixes(self, element: Any, type_: str, **kw: Any) -> str:
        """Return the clause with the format, for a table made from a query."""
        return "USING delta" if type_ == "create_table_as" else ""

    def visit_set_column_comment(self, create: Any, **kw: Any) -> str:
        """Return the statement that sets a column's comment."""
        return self._comment(create.element, create.element.comment)

    def visit_drop_column_comment(self, drop: Any, **kw: Any) -> str:
        """Return the statement that empties a column's comment.

        Spark cannot drop a comment.
        """
        return self._comment(drop.element, "")

    def _comment(self, column: Any, comment: str) -> str:
        table = self.preparer.format_table(column.table)
        name = self.preparer.format_column(column)
        return f"ALTER TABLE {table} ALTER COLUMN {name} COMMENT {self._text(comment)}"

    def _text(self, value: str) -> str:
        return self.sql_compiler.render_literal_value(value, types.String())

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> None:  # type: ignore[override]
        """Leave the primary key out: Spark would not enforce it, and Delta refuses it."""

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> None:  # type: ignore[override]
        """Leave the foreign key out: Spark would not enforce it, and Delta refuses it."""

    def visit_unique_constraint(self, constraint: Any, **kw: Any) -> str:
        """Raise CompileError: Spark cannot enforce that values are unique."""
        raise exc.CompileError("Spark keeps nothing unique: leave the UNIQUE constraint out")

    def visit_create_index(self, create: Any, *_: Any, **kw: Any) -> str:
        """Return an empty text, so that nothing is sent: Spark has no indexes.

        Queries have the same results without one.
        """
        if create.element.unique:
            raise exc.CompileError("Spark keeps nothing unique: leave the unique index out")
        return ""

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        """Return an empty text, so that nothing is sent: there is no index."""
        return ""


class HAProcTypeCompiler(compiler.GenericTypeCompiler):
    """Writes types in Spark's SQL."""

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return f"VARCHAR({type_.length})" if type_.length else "STRING"

    def visit_CHAR(self, type_: Any, **kw: Any) -> str:
        return f"CHAR({type_.length})" if type_.length else "STRING"

    visit_NVARCHAR = visit_VARCHAR
    visit_NCHAR = visit_CHAR

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        return "STRING"

    visit_CLOB = visit_TEXT
    visit_TIME = visit_TEXT

    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:
        return "INT"

    def visit_TINYINT(self, type_: Any, **kw: Any) -> str:
        return "TINYINT"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        """Return FLOAT for at most 24 bits, else DOUBLE, which holds a Python float."""
        bits = type_.precision
        return "FLOAT" if bits is not None and bits <= _SINGLE_BITS_MAX else "DOUBLE"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:
        return "FLOAT"

    def visit_DOUBLE_PRECISION(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        if type_.precision is None:
            return DECIMAL_DEFAULT
        return f"DECIMAL({type_.precision}, {type_.scale or 0})"

    visit_DECIMAL = visit_NUMERIC

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP" if type_.timezone else "TIMESTAMP_NTZ"

    visit_TIMESTAMP_NTZ = visit_DATETIME

    def visit_BINARY(self, type_: Any, **kw: Any) -> str:
        return "BINARY"

    visit_VARBINARY = visit_BINARY
    visit_BLOB = visit_BINARY

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:
        text = self.process(type_.item_type, **kw)
        for _ in range(type_.dimensions or 1):
            text = f"ARRAY<{text}>"
        return text

    def visit_MAP(self, type_: Any, **kw: Any) -> str:
        return f"MAP<{self.process(type_.key, **kw)}, {self.process(type_.value, **kw)}>"

    def visit_STRUCT(self, type_: Any, **kw: Any) -> str:
        quote = self.dialect.identifier_preparer.quote
        fields = (f"{quote(name)}: {self.process(kind, **kw)}" for name, kind in type_.fields)
        return f"STRUCT<{', '.join(fields)}>"
