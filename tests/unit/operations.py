"""Operations for tests, with short constructors."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.engine.arrow import stream_of
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import QueryWrite

ASYNCHRONOUS = OperationClass.ASYNCHRONOUS


def insert(op_id: str, table: str, *, rows: int = 1, signature: str = "i") -> Operation:
    """``INSERT INTO table VALUES …``: may be combined with its neighbours."""
    head = f"INSERT INTO {table} VALUES "
    sql = head + ", ".join([f"('{op_id}')"] * rows)
    return Operation(
        op_id,
        ASYNCHRONOUS,
        Kind.INSERT,
        "a",
        op_id,
        SqlText(sql),
        writes=frozenset({table}),
        insert=InsertShape(len(head), rows, signature),
    )


def update(op_id: str, table: str, *, reads: str = "") -> Operation:
    """``UPDATE table``: runs as a separate statement. ``reads`` names a table per character."""
    return Operation(
        op_id,
        ASYNCHRONOUS,
        Kind.UPDATE,
        "a",
        op_id,
        SqlText(f"UPDATE {table} SET x = 1"),
        reads=frozenset(reads),
        writes=frozenset({table}),
    )


def arrow(op_id: str, table: str) -> Operation:
    """Rows of one column for a table: may be combined with their neighbours."""
    write = ArrowRows(table, stream_of(pa.table({"x": [op_id]})))
    return replace(insert(op_id, table), kind=Kind.ROWS, write=write, insert=None)


def copy(op_id: str, source: str, target: str) -> Operation:
    """``INSERT INTO target SELECT … FROM source``."""
    return Operation(
        op_id,
        ASYNCHRONOUS,
        Kind.INSERT,
        "a",
        op_id,
        SqlText(f"INSERT INTO {target} SELECT * FROM {source}"),
        reads=frozenset({source}),
        writes=frozenset({target}),
    )


def computed(op_id: str, source: str, target: str, *, origin: str = "a") -> Operation:
    """The same with a query whose rows are yet to be computed."""
    head = f"INSERT INTO {target} "
    write = QueryWrite(f"{head}SELECT uuid() FROM {source}", len(head))
    return replace(copy(op_id, source, target), origin=origin, write=write)


def table_as(op_id: str, source: str, target: str, origin: str = "a") -> Operation:
    """``CREATE TABLE target AS SELECT … FROM source``, with all its tables named."""
    return replace(
        copy(op_id, source, target),
        operation_class=OperationClass.SYNCHRONOUS,
        kind=Kind.CREATE_TABLE_AS,
        origin=origin,
        write=SqlText(f"CREATE TABLE {target} AS SELECT * FROM {source}"),
        redefines=frozenset({target}),
        named=True,
    )


def table_ddl(op_id: str, table: str, origin: str = "a") -> Operation:
    """``ALTER TABLE table …``, with all its tables named."""
    write = SqlText(f"ALTER TABLE {table} SET TBLPROPERTIES ('x' = '1')")
    names = frozenset({table})
    altered = replace(ddl(op_id, origin), kind=Kind.ALTER_TABLE, write=write, named=True)
    return replace(altered, writes=names, redefines=names)


def unknown_tables(op_id: str) -> Operation:
    """An asynchronous operation that may touch any table."""
    write = SqlText("MERGE …")
    return Operation(
        op_id, ASYNCHRONOUS, Kind.MERGE, "a", op_id, write, tables_known=False, redefines=None
    )


def ddl(op_id: str, origin: str) -> Operation:
    """A synchronous operation whose origin is this cluster."""
    return Operation(
        op_id,
        OperationClass.SYNCHRONOUS,
        Kind.CREATE_TABLE,
        origin,
        op_id,
        SqlText(f"CREATE TABLE {op_id} (x INT)"),
        writes=frozenset({op_id}),
        redefines=frozenset({op_id}),
    )
