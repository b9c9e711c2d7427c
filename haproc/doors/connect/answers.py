"""Spark's answers, made for statements that did not run in the client's session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.engine.arrow import empty_stream, joined, stream_of
from haproc.engine.interface import Chunk
from haproc.statements.plain_arrow import text_of

# The schema of an Arrow stream in Spark Connect's form.


_SIMPLE: Final = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def schema_of(schema: pa.Schema) -> Any:
    """Return the type of the stream's rows, a struct."""
    found = protos.data_types.DataType()
    found.struct.SetInParent()
    for field in schema:
        _add_field(found, field)
    return found


def _add_field(struct: Any, field: pa.Field) -> None:
    added = struct.struct.fields.add(name=field.name, nullable=field.nullable)
    _fill(added.data_type, field.type)


def _fill(found: Any, kind: pa.DataType) -> None:
    if (simple := _SIMPLE.get(kind)) is not None:
        getattr(found, simple).SetInParent()
    elif pa.types.is_timestamp(kind):
        (found.timestamp if kind.tz else found.timestamp_ntz).SetInParent()
    elif pa.types.is_decimal(kind):
        found.decimal.precision, found.decimal.scale = kind.precision, kind.scale
    elif pa.types.is_map(kind):
        found.map.value_contains_null = kind.item_field.nullable
        _fill(found.map.key_type, kind.key_type)
        _fill(found.map.value_type, kind.item_type)
    elif pa.types.is_list(kind):
        found.array.contains_null = kind.value_field.nullable
        _fill(found.array.element_type, kind.value_type)
    elif pa.types.is_struct(kind):
        found.struct.SetInParent()
        for field in kind:
            _add_field(found, field)
    else:
        found.unparsed.data_type_string = text_of(kind)


# What Spark answers a statement with, made for those that did not run in the client's session.
#
# A command's result is rows that the client is handed as a relation of their own; they are part of
# the answer, so showing them runs nothing again. Values in, serialized ExecutePlanResponses out.


_base = protos.base


def sql_result(chunks: Sequence[bytes], plan_id: int | None) -> bytes:
    """Return the answer to a SQL command whose result are these Arrow streams."""
    response = _base.ExecutePlanResponse()
    relation = response.sql_command_result.relation
    if plan_id is not None:
        relation.common.plan_id = plan_id
    relation.local_relation.data = joined(chunks) if chunks else empty_stream()
    return bytes(response.SerializeToString())


def settings_rows(rows: Sequence[tuple[str, str]]) -> Chunk:
    """Return the result of a SET or RESET with these rows of a key and its value."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("key", "value"))}
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in columns])
    return Chunk(stream_of(pa.table(columns, schema=schema)), len(rows))


def schema(chunks: Sequence[bytes]) -> bytes:
    """Return the answer with the columns of Arrow streams; without streams, an empty one."""
    response = _base.ExecutePlanResponse()
    with pa.ipc.open_stream(chunks[0] if chunks else empty_stream()) as stream:
        response.schema.CopyFrom(schema_of(stream.schema))
    return bytes(response.SerializeToString())


def rows(chunk: Chunk) -> bytes:
    """Return the answer that brings rows."""
    response = _base.ExecutePlanResponse()
    response.arrow_batch.data = chunk.data
    response.arrow_batch.row_count = chunk.rows
    return bytes(response.SerializeToString())


def observed(found: Sequence[bytes]) -> bytes:
    """Return the answer with the results of observations."""
    response = _base.ExecutePlanResponse()
    for each in found:
        metrics = wire.parsed(_base.ExecutePlanResponse.ObservedMetrics, each)
        response.observed_metrics.append(metrics)
    return bytes(response.SerializeToString())


def only_removes(plan: bytes) -> bool:
    """Return whether a plan only drops objects that only its server's session holds."""
    command = wire.parsed(_base.Plan, plan).command
    return bool(command.WhichOneof("command_type") == "remove_cached_remote_relation")


def handles_in(responses: Sequence[bytes]) -> set[str]:
    """Return the objects of a command that only its server's session has: checkpoints, models."""
    found: set[str] = set()
    for each in responses:
        response = wire.parsed(_base.ExecutePlanResponse, each)
        found.add(response.checkpoint_command_result.relation.relation_id)
        found.add(response.ml_command_result.operator_info.obj_ref.id)
    return found - {""}
