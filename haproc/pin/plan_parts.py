"""Reads and replaces parts of plans that write: their rows, and names in a merge's conditions."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.names import Context, completed, parts_of, path_of
from haproc.classify.plans import delta
from haproc.classify.plans.parsing import PlanFindings, members, parse
from haproc.classify.plans.relations import inside
from haproc.pin.sqltypes import quote_name

# The names of a merge's source columns in its conditions, if rows replace the source.
#
# Spark keeps a DataFrame's name (of an alias, or of the table or view that it reads) through steps
# that pass columns on. A column that such a step makes has no name in front. So the rows get the
# same alias, and above it the columns without such a name are made again, each from itself.
#
# If columns of several names come together (a join, a SQL text), rows get no alias: Spark cannot
# resolve a reference by such a name, and reports it before anything is written.


_HANDING_ON: Final = members(
    """
    filter sort limit offset tail sample deduplicate repartition repartition_by_expression hint drop
    drop_na collect_metrics with_watermark
    """
)
"""Relations that pass on the columns of their input under the same names."""


@dataclass(frozen=True, slots=True)
class Called:
    """The name before columns of a merge's source in its conditions, such as ``s`` in ``s.id``.

    ``qualifier``: the names before it. ``anew``: columns that have no such name, in lower case.
    """

    alias: str
    qualifier: tuple[str, ...] = ()
    anew: frozenset[str] = frozenset()

    def over(self, rows: Any, columns: Iterable[str]) -> Any:
        """Return the relation ``rows`` with this name; ``columns``: the names of its columns."""
        named = protos.relations.Relation()
        named.subquery_alias.alias = self.alias
        named.subquery_alias.qualifier.extend(self.qualifier)
        named.subquery_alias.input.CopyFrom(rows)
        anew = [each for each in columns if each.lower() in self.anew]
        if not anew:
            return named
        made = protos.relations.Relation()
        made.with_columns.input.CopyFrom(named)
        for each in anew:
            alias = made.with_columns.aliases.add()
            alias.name.append(each)
            alias.expr.unresolved_attribute.unparsed_identifier = quote_name(each)
        return made


def called(source: Any, context: Context) -> Called | None:
    """Return the name that may stand before the columns of the relation ``source``.

    None if there is none, or if its columns have several.
    """
    anew = frozenset[str]()
    while (kind := source.WhichOneof("rel_type")) is not None:
        message = getattr(source, kind)
        if kind == "subquery_alias":
            return Called(message.alias, tuple(message.qualifier), anew)
        if kind == "read":
            parts = parts_of(message.named_table.unparsed_identifier) or ()
            if not parts or path_of(parts):
                return None
            *before, name = completed(parts, context)
            return Called(name, tuple(before), anew)
        if kind in _MAKING:
            made = list(_MAKING[kind](message))
            if None in made:
                return None
            anew |= {each.lower() for each in made if each is not None}
        elif kind not in _HANDING_ON:
            break
        source = message.input
    return None


def _with_columns(message: Any) -> Iterator[str | None]:
    for alias in message.aliases:
        yield alias.name[0] if len(alias.name) == 1 else None


def _renamed(message: Any) -> Iterator[str | None]:
    yield from message.rename_columns_map.values()
    yield from (each.new_col_name for each in message.renames)


def _selected(message: Any) -> Iterator[str | None]:
    """Yield the names of the computed columns of a SELECT that have one.

    None: it cannot be told.
    """
    for each in message.expressions:
        kind = each.WhichOneof("expr_type")
        if kind == "alias":
            yield each.alias.name[0] if len(each.alias.name) == 1 else None
        elif kind == "unresolved_attribute":
            parts = parts_of(each.unresolved_attribute.unparsed_identifier)
            if parts is None or len(parts) > 2:
                yield None  # a field of a column, or a column by a longer name


_MAKING: Final = {
    "with_columns": _with_columns,
    "with_columns_renamed": _renamed,
    "project": _selected,
}


# Parts of plans that write: the rows that they take, and a relation that replaces the rows.


_RELATION: Final = protos.relations.Relation.DESCRIPTOR.full_name
_PLACES: Final = {
    "write_operation": "input",
    "write_operation_v2": "input",
    "merge_into_table_command": "source_table_plan",
}
_MERGE: Final = "merge_into_table"


def input_of(plan: Any) -> Any:
    """Return the relation whose rows a plan writes; None if it writes no rows of a relation.

    For a merge of Delta's own protocol this is a copy.
    """
    if plan.WhichOneof("op_type") == "command":
        kind = plan.command.WhichOneof("command_type")
        place = _PLACES.get(kind)
        return None if place is None else getattr(getattr(plan.command, kind), place)
    merge = _delta_merge(plan)
    if merge is None:
        return None
    return parse(protos.relations.Relation, merge.merge_into_table.source.SerializeToString())


def with_input(plan: Any, relation: Any) -> Any:
    """Return a copy of a plan with this relation in place of `input_of`.

    Raises ValueError for a plan that writes no rows of a relation.
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
    """Return a copy of a plan in which rows stand in place of the hashes that refer to them.

    ``blobs``: the session's cached artifacts by hash. Raises KeyError if one is missing, and
    pyarrow.ArrowInvalid for one that has no rows.
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
    relation = parse(delta.DeltaRelation, extension.value)
    _inline(relation, blobs)
    extension.value = relation.SerializeToString()


def _inline_whole(relation: Any, blobs: Mapping[str, bytes]) -> None:
    """Replace one hash by the LocalRelation in its artifact: so PySpark 4.0 sends rows."""
    # Inside a relation of Delta's this message has a class of its own.
    kind = type(relation.local_relation)
    relation.local_relation.CopyFrom(parse(kind, blobs[relation.cached_local_relation.hash]))


def _inline_chunks(relation: Any, blobs: Mapping[str, bytes]) -> None:
    """Replace several hashes by the rows in their artifacts.

    Each artifact is an Arrow stream; one more is the text of the schema.
    """
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
