"""Parts of plans that write: the rows that they take, and what stands in for those."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.plans import delta, delta_messages
from haproc.classify.plans.parsing import parse
from haproc.classify.plans.reading import PlanFindings
from haproc.classify.plans.relations import inside

_RELATION: Final = protos.relations.Relation.DESCRIPTOR.full_name
_PLACES: Final = {
    "write_operation": "input",
    "write_operation_v2": "input",
    "merge_into_table_command": "source_table_plan",
}
_MERGE: Final = "merge_into_table"


def input_of(plan: Any) -> Any:
    """Return the relation whose rows a plan writes, itself; None if it takes no rows."""
    if plan.WhichOneof("op_type") == "command":
        kind = plan.command.WhichOneof("command_type")
        place = _PLACES.get(kind)
        return None if place is None else getattr(getattr(plan.command, kind), place)
    merge = _delta_merge(plan)
    if merge is None:
        return None
    return parse(protos.relations.Relation, merge.merge_into_table.source.SerializeToString())


def with_input(plan: Any, relation: Any) -> Any:
    """Return a copy of a plan that writes the rows of this relation instead; see `input_of`.

    Raises ValueError for a plan that takes no rows.
    """
    changed = protos.base.Plan()
    changed.CopyFrom(plan)
    if plan.WhichOneof("op_type") == "command":
        kind = plan.command.WhichOneof("command_type")
        if kind not in _PLACES:
            raise _no_place()
        getattr(getattr(changed.command, kind), _PLACES[kind]).CopyFrom(relation)
        return changed
    merge = _delta_merge(plan)
    if merge is None:
        raise _no_place()
    source = merge.merge_into_table.source
    source.CopyFrom(wire.parsed(type(source), relation.SerializeToString()))
    changed.root.extension.value = merge.SerializeToString()
    return changed


def _no_place() -> ValueError:
    return ValueError("a plan that takes no rows has no place for any")


def _delta_merge(plan: Any) -> Any | None:
    root = plan.root
    if root.WhichOneof("rel_type") != "extension":
        return None
    relation = delta.relation_in(root.extension, PlanFindings())
    return relation if delta.kind_of(relation) == _MERGE else None


def inlined(plan: Any, blobs: Mapping[str, bytes]) -> Any:
    """Return a copy of a plan that carries the rows of which it only has a hash.

    ``blobs`` are the session's cached artifacts by their hashes. Raises KeyError for one that is
    not there, pyarrow.ArrowInvalid for one that holds no rows.
    """
    changed = protos.base.Plan()
    changed.CopyFrom(plan)
    _inline(changed, blobs)
    return changed


def _inline(root: Any, blobs: Mapping[str, bytes]) -> None:
    stack = [root]
    while stack:
        message = stack.pop()
        if message.DESCRIPTOR.full_name == _RELATION:
            kind = message.WhichOneof("rel_type")
            if kind in _CACHED:
                _CACHED[kind](message, blobs)
            elif kind == "extension":
                _inline_extension(message.extension, blobs)
        stack.extend(inside(message))


def _inline_extension(extension: Any, blobs: Mapping[str, bytes]) -> None:
    relation = parse(delta_messages.DeltaRelation, extension.value)
    _inline(relation, blobs)
    extension.value = relation.SerializeToString()


def _inline_whole(relation: Any, blobs: Mapping[str, bytes]) -> None:
    """One artifact, which is a LocalRelation: of PySpark 4.0."""
    # Inside a relation of Delta's it is a class of its own.
    kind = type(relation.local_relation)
    relation.local_relation.CopyFrom(parse(kind, blobs[relation.cached_local_relation.hash]))


def _inline_chunks(relation: Any, blobs: Mapping[str, bytes]) -> None:
    """Artifacts that are Arrow streams each, and one that is the schema's text."""
    cached = relation.chunked_cached_local_relation
    chunks = [blobs[each] for each in cached.dataHashes]
    schema = blobs[cached.schemaHash].decode() if cached.schemaHash else None
    relation.local_relation.data = chunks[0] if len(chunks) == 1 else _one_stream(chunks)
    if schema is not None:
        relation.local_relation.schema = schema


def _one_stream(chunks: list[bytes]) -> bytes:
    sink = io.BytesIO()
    writer: pa.RecordBatchStreamWriter | None = None
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as reader:
            writer = writer or pa.ipc.new_stream(sink, reader.schema)
            for batch in reader:
                writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return sink.getvalue()


_CACHED: Final[dict[str, Callable[[Any, Mapping[str, bytes]], None]]] = {
    "cached_local_relation": _inline_whole,
    "chunked_cached_local_relation": _inline_chunks,
}
