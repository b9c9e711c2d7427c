"""Tests of the operations that may run as one statement, and of the form of that statement."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest

from haproc.classify.bounds import Bounds, check_shape
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.config.sections import Limits
from haproc.engine.interface import Settings
from haproc.engine.statement import ROWS_MAX, ArrowRows, SqlText
from haproc.replicate.member.core import batch_limits
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits, batch_key, cell_count, combine, row_count
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import Progress
from tests.unit.operations import copy, ddl, insert, unknown_tables, update


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def rows(op_id: str, table: pa.Table, target: str = "x") -> Operation:
    return Operation(
        op_id,
        OperationClass.ASYNCHRONOUS,
        Kind.ROWS,
        "a",
        op_id,
        ArrowRows(target, stream(table)),
        writes=frozenset({target}),
    )


NUMBERS = pa.table({"n": pa.array([1, 2], pa.int64())})
PLAIN = insert("op", "x")


@pytest.mark.parametrize(
    "op",
    [
        update("op", "x"),
        copy("op", "y", "x"),
        unknown_tables("op"),
        ddl("op", "a"),
        replace(PLAIN, operation_class=OperationClass.SYNCHRONOUS),
        replace(PLAIN, operation_class=OperationClass.SYNCHRONOUS_PARALLEL),
        replace(PLAIN, insert=None),
        replace(PLAIN, kind=Kind.INSERT_OVERWRITE),
        replace(PLAIN, reads=frozenset({"x"})),
        replace(PLAIN, writes=frozenset({"x", "y"})),
        replace(PLAIN, tables_known=False),
    ],
)
def test_batch_key_of_operation_that_must_run_alone_is_none(op: Operation) -> None:
    assert batch_key(op) is None


def test_batch_key_of_same_form_and_table_is_equal() -> None:
    assert batch_key(PLAIN) == batch_key(insert("other", "x", rows=5)) is not None


@pytest.mark.parametrize(
    "other",
    [
        insert("op", "y"),
        insert("op", "x", signature="s"),
        replace(PLAIN, settings=Settings(time_zone="Europe/Berlin")),
        replace(PLAIN, settings=Settings(ansi=False)),
        replace(PLAIN, settings=Settings(schema="other")),
        replace(
            PLAIN,
            write=SqlText("INSERT INTO x (b, a) VALUES ('op')"),
            insert=InsertShape(len("INSERT INTO x (b, a) VALUES "), 1, "i"),
        ),
        rows("op", NUMBERS),
    ],
)
def test_batch_key_of_operation_that_differs_in_anything_is_different(other: Operation) -> None:
    assert batch_key(other) is not None
    assert batch_key(PLAIN) != batch_key(other)


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (pa.table({"n": pa.array([3], pa.int64())}), True),
        (NUMBERS.replace_schema_metadata({"from": "pandas"}), True),
        (pa.table({"n": pa.array([3], pa.int32())}), False),
        (pa.table({"m": pa.array([3], pa.int64())}), False),
        (NUMBERS.append_column("m", pa.array([1, 2])), False),
    ],
)
def test_batch_key_of_rows_depends_on_their_schema(other: pa.Table, equal: bool) -> None:
    assert (batch_key(rows("a", NUMBERS)) == batch_key(rows("b", other))) is equal


def test_combine_of_one_operation_returns_its_own_write() -> None:
    assert combine([PLAIN]) is PLAIN.write


def test_combine_of_inserts_keeps_order_and_survives_a_closing_comment() -> None:
    commented = replace(PLAIN, write=SqlText("INSERT INTO x VALUES ('op') -- the last one"))
    assert combine([commented, insert("b", "x", rows=2), insert("c", "x")]) == SqlText(
        "INSERT INTO x VALUES ('op') -- the last one\n, ('b'), ('b')\n, ('c')"
    )


def test_combine_of_rows_is_one_stream_with_all_rows_in_order() -> None:
    more = pa.table({"n": pa.array([3, None], pa.int64())})
    none = NUMBERS.slice(0, 0)
    combined = combine([rows("a", NUMBERS), rows("b", none), rows("c", more)])
    assert isinstance(combined, ArrowRows)
    assert combined.table == "x"
    with pa.ipc.open_stream(combined.rows) as reader:
        assert reader.read_all() == pa.concat_tables([NUMBERS, more])


def test_row_count_is_the_count_of_the_record() -> None:
    assert row_count(insert("op", "x", rows=7)) == 7
    assert row_count(rows("op", NUMBERS)) == NUMBERS.num_rows


def test_arrow_rows_have_separate_batch_limits() -> None:
    limits = BatchLimits(operations_max=4, rows_max=10, bytes_max=100, arrow_bytes_max=1000)
    text, arrow = insert("op", "x"), rows("op", NUMBERS)
    assert not limits.exceeded(text, 4, 10, 100)
    assert limits.exceeded(text, 1, 11, 1) and limits.exceeded(text, 1, 1, 101)
    assert not limits.exceeded(arrow, 4, ROWS_MAX, 1000)
    assert limits.exceeded(arrow, 1, ROWS_MAX + 1, 1) and limits.exceeded(arrow, 1, 1, 1001)
    assert limits.exceeded(text, 5, 1, 1) and limits.exceeded(arrow, 5, 1, 1)


def test_arrow_rows_are_limited_together_with_parallel_batches() -> None:
    limits = BatchLimits(bytes_max=100, arrow_bytes_max=1000)
    text, arrow = insert("op", "x"), rows("op", NUMBERS)
    assert not limits.exceeded(arrow, 1, 1, 1000, arrow_beside=1000)
    assert limits.exceeded(arrow, 1, 1, 401, arrow_beside=1600)
    assert not limits.exceeded(arrow, 1, 1, 400, arrow_beside=1600)
    assert limits.exceeded(arrow, 1, 1, 1, arrow_beside=2000)
    assert not limits.exceeded(text, 1, 1, 100, arrow_beside=2000)


def test_combined_text_has_at_most_the_tokens_of_one_statement() -> None:
    limits = batch_limits(replace(Limits(), statement_tokens_max=1000))
    text, arrow = insert("op", "x"), rows("op", NUMBERS)
    assert not limits.exceeded(text, 2, 50, 1, cells=450)
    assert limits.exceeded(text, 2, 50, 1, cells=451)
    assert not limits.exceeded(arrow, 2, 50, 1, cells=451)
    schedule = Schedule("a", Progress(), 0, limits)
    for offset in range(3):
        schedule.enter_operation(offset, insert(f"op{offset}", "x", rows=100, signature="i,i"))
    (unit,) = schedule.take(4)
    assert unit.offsets == (0,)  # 600 each
    shape = unit.operations[0].insert
    assert shape is not None
    check_shape(shape, Bounds(tokens_max=600))


def test_cell_count_is_rows_times_columns() -> None:
    for op in (insert("op", "x", rows=7, signature="i,i,s"), rows("op", NUMBERS)):
        key = batch_key(op)
        columns = 3 if op.insert else NUMBERS.num_columns
        assert cell_count(key, row_count(op)) == row_count(op) * columns
    assert cell_count(None, 7) == 0
