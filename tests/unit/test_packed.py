"""Many rows are sent as a few lists. Integration tests compare both forms on a real Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from haproc import protos
from haproc.engine import placeholder
from haproc.engine.placeholder import FEW, TOGETHER
from haproc.engine.remote import plan_bytes, plan_of
from haproc.engine.statement import ArrowRows
from haproc.offloop import LARGE_BYTES

MAKE = placeholder.rows_relation


def stream_of(table: pa.Table, rows_per_batch: int = 1 << 20) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue())


def relation_of(rows: bytes, names: Sequence[str] | None = None) -> Any:
    pieces = placeholder.rows_relation(rows, names)
    return protos.relations.Relation.FromString(b"".join(pieces))


def test_few_rows_are_sent_unpacked() -> None:
    rows = stream_of(pa.table({"a": range(FEW)}))
    assert relation_of(rows).local_relation.data == rows
    renamed = relation_of(rows, ["b"]).to_df
    assert (renamed.input.local_relation.data, [*renamed.column_names]) == (rows, ["b"])


def test_many_rows_are_sent_as_lists_with_their_names_types_and_order() -> None:
    count = 2 * TOGETHER + 1
    columns = [pa.array(range(count)), pa.array([None, "x"] * TOGETHER + ["y"])]
    table = pa.Table.from_arrays(columns, names=["a", "a"])
    relation = relation_of(stream_of(table, TOGETHER + 1))
    assert [*relation.to_df.column_names] == ["a", "a"]
    project: Any = relation.to_df.input.project
    sent = pa.ipc.open_stream(project.input.local_relation.data).read_all()
    assert [len(each) for each in sent["rows"]] == [TOGETHER, 1, TOGETHER]
    structs = [row for each in sent["rows"].to_pylist() for row in each]
    assert [row["c1"] for row in structs] == [*range(count)]
    assert [row["c2"] for row in structs] == table.column(1).to_pylist()


def test_rows_of_many_small_batches_are_sent_together() -> None:
    table = pa.table({"a": range(2 * TOGETHER + 3)})
    project: Any = relation_of(stream_of(table, 2)).to_df.input.project
    sent = pa.ipc.open_stream(project.input.local_relation.data).read_all()
    assert [len(each) for each in sent["rows"]] == [TOGETHER, TOGETHER, 3]
    assert [row["c1"] for each in sent["rows"].to_pylist() for row in each] == [*range(len(table))]


def test_rows_that_are_no_stream_or_have_dictionary_types_are_sent_unpacked() -> None:
    assert relation_of(b"no stream").local_relation.data == b"no stream"
    rows = stream_of(pa.table({"a": pa.array(["x"] * 2 * FEW).dictionary_encode()}))
    assert relation_of(rows).local_relation.data == rows


def test_many_rows_without_columns_are_sent_unpacked() -> None:
    structs = pa.array([{}] * 2 * FEW, pa.struct([]))
    rows = stream_of(pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)]))
    assert relation_of(rows).local_relation.data == rows


async def test_plan_of_many_rows_is_built_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made_in: list[threading.Thread] = []

    def seen(*arguments: Any) -> list[Any]:
        made_in.append(threading.current_thread())
        return MAKE(*arguments)

    monkeypatch.setattr(placeholder, "rows_relation", seen)
    for count in (1, LARGE_BYTES // 8 + 1):
        statement = ArrowRows("t", stream_of(pa.table({"a": range(count)})))
        pieces = await plan_bytes(statement)
        assert b"".join(pieces) == plan_of(statement).SerializeToString()  # type: ignore[arg-type]
    few, _, many, _ = (thread is threading.main_thread() for thread in made_in)
    assert (few, many) == (True, False)
