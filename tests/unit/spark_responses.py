"""ExecutePlan's requests and responses in Spark's form, and a client that reads them."""

from __future__ import annotations

import io
import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import pyarrow as pa

from haproc import protos

Response = protos.base.ExecutePlanResponse
SESSION = "11111111-2222-3333-4444-555555555555"
OPERATION = "66666666-7777-8888-9999-000000000000"


def request(sql: str = "select 1", *, reattachable: bool = True, tags: Iterable[str] = ()) -> bytes:
    made = protos.base.ExecutePlanRequest(session_id=SESSION, operation_id=OPERATION)
    made.plan.root.sql.query = sql
    made.tags.extend(tags)
    if reattachable:
        made.request_options.add().reattach_options.reattachable = True
    return bytes(made.SerializeToString())


def schema() -> bytes:
    made = Response(session_id=SESSION)
    made.schema.struct.SetInParent()
    return bytes(made.SerializeToString())


def metrics() -> bytes:
    made = Response(session_id=SESSION)
    made.metrics.metrics.add(name="rows")
    return bytes(made.SerializeToString())


def progress(tasks: int = 1) -> bytes:
    made = Response(session_id=SESSION)
    made.execution_progress.num_inflight_tasks = tasks
    return bytes(made.SerializeToString())


def complete() -> bytes:
    made = Response(session_id=SESSION)
    made.result_complete.SetInParent()
    return bytes(made.SerializeToString())


def arrow(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def rows(batch: pa.RecordBatch, start: int, chunks: int = 1) -> list[bytes]:
    """Return a batch as one response, or cut into chunks."""
    data, made = arrow(batch), []
    size = -(-len(data) // chunks)
    for index in range(chunks):
        response = Response(session_id=SESSION)
        response.arrow_batch.row_count = batch.num_rows
        response.arrow_batch.start_offset = start
        response.arrow_batch.data = data[index * size : (index + 1) * size]
        if chunks > 1:
            response.arrow_batch.chunk_index = index
            response.arrow_batch.num_chunks_in_batch = chunks
        made.append(bytes(response.SerializeToString()))
    return made


def result(table: pa.Table, edges: Sequence[int], chunks: int = 1) -> list[bytes]:
    """Return a query's responses; ``edges``: the positions at which its batches are cut."""
    places = [0, *sorted(edges), table.num_rows]
    responses = [schema(), progress()]
    for begin, end in itertools.pairwise(places):
        cut = table.slice(begin, end - begin).combine_chunks().to_batches()
        batch = cut[0] if cut else pa.RecordBatch.from_pylist([], table.schema)
        responses += [*rows(batch, begin, chunks), progress()]
    return [*responses, metrics(), complete()]


class Client:
    """Reads responses as PySpark does, and raises the same errors."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.seen: list[str] = []
        self.last_id = ""
        self._chunks: list[bytes] = []

    def take(self, message: bytes) -> None:
        response = Response.FromString(message)
        assert response.session_id == SESSION
        self.last_id = response.response_id
        self.seen += [name for name in ("schema", "metrics") if response.HasField(name)]
        kind = response.WhichOneof("response_type")
        if kind != "arrow_batch":
            self.seen += [kind] if kind not in (None, "execution_progress") else []
            return
        batch = response.arrow_batch
        assert batch.chunk_index == len(self._chunks)
        if not self._chunks:
            assert batch.start_offset == self.rows
        self._chunks.append(batch.data)
        if len(self._chunks) >= batch.num_chunks_in_batch:
            for each in pa.ipc.open_stream(b"".join(self._chunks)):
                assert each.num_rows == batch.row_count
                self.rows += each.num_rows
                self.batches.append(each)
            self._chunks = []

    def table(self, like: pa.Table) -> pa.Table:
        return pa.Table.from_batches(self.batches, like.schema)

    def has_all_of(self, table: pa.Table) -> bool:
        return self.table(table).equals(table) and self.seen == [
            "schema",
            "metrics",
            "result_complete",
        ]


async def each(responses: Iterable[Any]) -> AsyncGenerator[bytes, None]:
    """Yield responses; raise those that are exceptions."""
    for response in responses:
        if isinstance(response, Exception):
            raise response
        yield response
