"""Many rows are sent as few; what a cluster makes of both is held together on a real Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from haproc.engine.packed import FEW, TOGETHER, relation_of


def stream_of(table: pa.Table, rows_per_batch: int = 1 << 20) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue())


def test_few_rows_go_as_they_are() -> None:
    rows = stream_of(pa.table({"a": range(FEW)}))
    assert relation_of(rows).local_relation.data == rows
    renamed = relation_of(rows, ["b"]).to_df
    assert (renamed.input.local_relation.data, [*renamed.column_names]) == (rows, ["b"])


def test_many_rows_go_as_lists_with_their_names_types_and_order() -> None:
    count = 2 * TOGETHER + 1
    columns = [pa.array(range(count)), pa.array([None, "x"] * TOGETHER + ["y"])]
    table = pa.Table.from_arrays(columns, names=["a", "a"])
    relation = relation_of(stream_of(table, TOGETHER + 1))
    assert [*relation.to_df.column_names] == ["a", "a"]
    project: Any = relation.to_df.input.project
    packed = pa.ipc.open_stream(project.input.local_relation.data).read_all()
    assert [len(each) for each in packed["rows"]] == [TOGETHER, 1, TOGETHER]
    structs = [row for each in packed["rows"].to_pylist() for row in each]
    assert [row["c1"] for row in structs] == [*range(count)]
    assert [row["c2"] for row in structs] == table.column(1).to_pylist()


def test_what_is_no_stream_or_has_types_of_its_own_is_left_to_spark() -> None:
    assert relation_of(b"no stream").local_relation.data == b"no stream"
    rows = stream_of(pa.table({"a": pa.array(["x"] * 2 * FEW).dictionary_encode()}))
    assert relation_of(rows).local_relation.data == rows
