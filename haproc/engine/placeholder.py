"""Spark Connect plans that contain rows, or a placeholder for rows that are computed later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message

from haproc import protos, wire
from haproc.classify.names import STAGING_SCHEMA
from haproc.classify.tokens import TokenKind, tokenize
from haproc.engine.arrow import END_OF_STREAM, FrameError, continuation, opening, rows_in
from haproc.engine.statement import ArrowRows
from haproc.pin.plan_parts import input_of, with_input
from haproc.pin.sqltypes import quote_name
from haproc.wire import Piece

# Rows as a relation that Spark plans quickly.
#
# The rows of a local relation are a part of the plan. Dozens of Catalyst's rules, one after
# another, on one thread, go through each row. So many rows are sent as a few: each is a list of
# some thousand rows, which `inline` splits where the statement runs. An INSERT of 12 MiB then takes
# Spark half the processor time. The rows of many small requests come in as many batches. They are
# joined before, because a list of two rows costs more than two rows.


TOGETHER: Final = 4_096
"""The number of rows that are packed into one list. Measured: with 1,024 Spark takes a quarter more
time."""
FEW: Final = 1_024
"""The most rows that are sent as they are, not packed into lists, which is cheapest for a small
statement. Chosen."""
_COLUMN: Final = "rows"
_Relations = protos.relations
_PLAIN: Final = frozenset(
    (
        *(pa.lib.Type_NA, pa.lib.Type_BOOL, pa.lib.Type_STRING, pa.lib.Type_BINARY),
        *(pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64),
        *(pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE, pa.lib.Type_DECIMAL128),
        *(pa.lib.Type_DATE32, pa.lib.Type_TIMESTAMP, pa.lib.Type_DURATION),
    )
)


def column_names(count: int) -> list[str]:
    """Return the names of ``count`` plain columns: ``c1`` to ``cN``."""
    return [f"c{at}" for at in range(1, count + 1)]


class RowsRelation:
    """Builds the bytes of a plan's relation that contains rows, given as Arrow IPC streams.

    All streams have one schema. The pieces are joined only once, together with the messages around
    them, because each message and its bytes would copy the rows. ``count``: the approximate number
    of rows. ``names``: the columns' names, if they differ from the schema's.
    """

    def __init__(self, schema: pa.Schema, count: int, names: Sequence[str] | None = None) -> None:
        self._names = names
        packs = count > FEW and len(schema) and all(map(_packs, schema.types))
        self._packing = _Packing(schema) if packs else None
        self._schema = schema
        self._data: list[Piece] = []

    def add_stream(self, stream: bytes) -> None:
        """Add an Arrow IPC stream with the next rows; raises pa.ArrowInvalid if it is none."""
        if self._packing is not None:
            with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
                self._data += [part for batch in reader for part in self._packing.pack_batch(batch)]
        else:
            self._data.append(continuation(stream) if self._data else opening(stream))

    def pieces(self) -> list[Piece]:
        """Return the bytes of the ``Relation``, in pieces."""
        if self._packing is None:
            relation = _local([*self._data, END_OF_STREAM])
            if self._names is None:
                return relation
        else:
            relation = _local([self._packing.head, *self._data, *self._packing.rest()])
            project = _Relations.Project()
            taken_apart = project.expressions.add().unresolved_function
            taken_apart.function_name = "inline"
            argument = taken_apart.arguments.add().unresolved_attribute
            argument.unparsed_identifier = _COLUMN
            inner = wire.within(project, "input", relation)
            relation = wire.within(_Relations.Relation(), "project", inner)
        return _renamed(relation, self._schema.names if self._names is None else self._names)


def _local(data: Sequence[Piece]) -> list[Piece]:
    local = wire.within(_Relations.LocalRelation(), "data", data)
    return wire.within(_Relations.Relation(), "local_relation", local)


def _renamed(relation: Sequence[Piece], names: Sequence[str]) -> list[Piece]:
    to_df = wire.within(_Relations.ToDF(column_names=names), "input", relation)
    return wire.within(_Relations.Relation(), "to_df", to_df)


def rows_relation(rows: bytes, names: Sequence[str] | None = None) -> list[Piece]:
    """Return the bytes of a relation that contains one Arrow IPC stream's rows, in pieces.

    An unreadable stream is sent unchanged, so that Spark reports the error.
    """
    try:
        schema, count = pa.ipc.read_schema(pa.py_buffer(rows)), rows_in(rows)
        relation = RowsRelation(schema, count, names)
        relation.add_stream(rows)
        return relation.pieces()
    except (pa.ArrowInvalid, FrameError):
        return _local([rows]) if names is None else _renamed(_local([rows]), names)


def append_of(statement: ArrowRows) -> list[Piece]:
    """Return the bytes, in pieces, of the plan that appends the statement's rows to its table."""
    return appending(statement.table, rows_relation(statement.rows))


def appending(table: str, relation: Sequence[Piece]) -> list[Piece]:
    """Return the bytes, in pieces, of the plan that appends a relation's rows to ``table``."""
    commands = protos.commands
    write = commands.WriteOperationV2(table_name=table, mode=commands.WriteOperationV2.MODE_APPEND)
    command = wire.within(write, "input", relation)
    command = wire.within(commands.Command(), "write_operation_v2", command)
    return wire.within(_base.Plan(), "command", command)


def _packs(kind: pa.DataType) -> bool:
    """True if pyarrow can make lists of this type's values; it cannot for some, as intervals."""
    if pa.types.is_struct(kind):
        return all(_packs(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _packs(kind.key_type) and _packs(kind.item_type)
    return _packs(kind.value_type) if pa.types.is_list(kind) else kind.id in _PLAIN


class _Packing:
    """Turns rows into an Arrow stream of one column: lists of structs, a struct for each row."""

    def __init__(self, schema: pa.Schema) -> None:
        # Names are restored later: columns may share a name, fields of a struct may not.
        names = column_names(len(schema))
        self._fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
        element = pa.field("element", pa.struct(self._fields), nullable=False)
        self._packed = pa.schema([pa.field(_COLUMN, pa.list_(element), nullable=False)])
        self._small: list[pa.RecordBatch] = []
        self._rows = 0
        self.head: Piece = self._packed.serialize()

    def pack_batch(self, batch: pa.RecordBatch) -> list[Piece]:
        """Add rows; return an Arrow message once they fill a list, otherwise an empty list."""
        self._small.append(batch)
        self._rows += len(batch)
        return self._message() if self._rows >= TOGETHER else []

    def rest(self) -> list[Piece]:
        """Return the Arrow message with the remaining rows, and the stream's end."""
        return [*(self._message() if self._small else ()), END_OF_STREAM]

    def _message(self) -> list[Piece]:
        small, self._small, self._rows = self._small, [], 0
        batch = small[0] if len(small) == 1 else pa.concat_batches(small)
        structs = pa.StructArray.from_arrays(batch.columns, fields=self._fields)
        begins = pa.array([*range(0, len(batch), TOGETHER), len(batch)], pa.int32())
        lists = pa.ListArray.from_arrays(begins, structs, type=self._packed.types[0])
        return [pa.record_batch([lists], schema=self._packed).serialize()]


# Plans with a placeholder for the rows that are computed for them.
#
# The placeholder reads a table that no client's statement may name. It stands for columns ``c1`` to
# ``cN``. Around it, `restored` gives the columns their names and exact types back, because the rows
# come with the types of Arrow or Parquet. These lack the units of intervals, collations, repeated
# field names, and the metadata of CHAR and VARCHAR. All restored columns may be null, as in a table
# that a query makes.
#
# The rows themselves replace the placeholder, or a read of the table that holds them.


PLACEHOLDER: Final = f"{STAGING_SCHEMA}.rows"
_HANDLES: Final = frozenset({"cached_remote_relation", "ml_relation"})
_ALIAS: Final = "haproc_rows"
_base = protos.base


def placeholder() -> Any:
    """Return the placeholder: the relation that stands for the rows."""
    relation = protos.relations.Relation()
    relation.read.named_table.unparsed_identifier = PLACEHOLDER
    return relation


def append_template(table: str) -> bytes:
    """Return the plan that appends rows to a table by name, with a placeholder for them."""
    plan = _base.Plan()
    command = plan.command.write_operation_v2
    command.input.CopyFrom(placeholder())
    command.table_name = table
    command.mode = protos.commands.WriteOperationV2.MODE_APPEND
    return bytes(plan.SerializeToString())


def empty_query(schema: bytes) -> bytes:
    """Return the plan of a query that gives no rows; ``schema``: an Arrow stream of its columns."""
    plan = _base.Plan()
    plan.root.local_relation.data = schema
    return bytes(plan.SerializeToString())


def restored(schema: bytes, names: Sequence[str]) -> Any:
    """Return the relation that gives the placeholder's columns ``names`` and the schema's types.

    ``schema`` is a serialized ``spark.connect.DataType``, a struct.
    """
    fields = wire.parsed(protos.data_types.DataType, schema).struct.fields
    carried = column_names(len(fields))
    relation = protos.relations.Relation()
    project = relation.project
    project.input.to_df.input.CopyFrom(placeholder())
    project.input.to_df.column_names.extend(carried)
    for field, plain, name in zip(fields, carried, names, strict=True):
        alias = project.expressions.add().alias
        alias.name.append(name)
        if field.HasField("metadata"):
            alias.metadata = field.metadata
        alias.expr.cast.expr.unresolved_attribute.unparsed_identifier = plain
        alias.expr.cast.type.CopyFrom(_nullable(field.data_type))
    return relation


def sql_with_rows(head: str, schema: bytes) -> bytes:
    """Return the plan of a statement: the SQL text ``head``, then the placeholder as its query.

    ``schema`` is the Spark type of the placeholder's rows, serialized.
    """
    fields = wire.parsed(protos.data_types.DataType, schema).struct.fields
    plain, alias = column_names(len(fields)), _alias(head)
    items = ", ".join(
        f"{name} AS {quote_name(field.name)}" for name, field in zip(plain, fields, strict=True)
    )
    plan = _base.Plan()
    statement = plan.root.with_relations
    # A line break, because a head may end in a comment.
    statement.root.sql.query = f"{head}\nSELECT {items} FROM {alias}"
    reference = statement.references.add().subquery_alias
    reference.alias = alias
    reference.input.CopyFrom(restored(schema, plain))
    return bytes(plan.SerializeToString())


def with_rows(plan: bytes, rows: bytes) -> bytes:
    """Return the plan with the rows of an Arrow IPC stream in place of its placeholder."""
    relation = protos.relations.Relation()
    relation.local_relation.data = rows
    return _filled(plan, relation)


def with_table(plan: bytes, table: str) -> bytes:
    """Return the plan with a table's rows in place of its placeholder."""
    relation = protos.relations.Relation()
    relation.read.named_table.unparsed_identifier = table
    return _filled(plan, relation)


def plan_with_rows(template: bytes, schema: bytes) -> bytes:
    """Return the plan ``template``, whose placeholder then has the schema's names and types."""
    fields = wire.parsed(protos.data_types.DataType, schema).struct.fields
    return _filled(template, restored(schema, [field.name for field in fields]))


def plan_of_query(relation: bytes) -> bytes:
    """Return the plan that runs a serialized relation."""
    plan = _base.Plan()
    plan.root.CopyFrom(wire.parsed(protos.relations.Relation, relation))
    return bytes(plan.SerializeToString())


def rests_on_handles(relation: bytes) -> bool:
    """True if a relation reads an object in one Spark session's memory: a checkpoint, a model."""
    plan = wire.parsed(_base.Plan, plan_of_query(relation))
    return any(each.WhichOneof("rel_type") in _HANDLES for each in _relations(plan))


def _filled(plan: bytes, relation: Any) -> bytes:
    parsed = wire.parsed(_base.Plan, plan)
    found = _placeholders(parsed)
    if not found:  # Delta's own commands are packed
        source = input_of(parsed)
        found = [] if source is None else _placeholders(source)
        (only,) = found
        only.CopyFrom(relation)
        return bytes(with_input(parsed, source).SerializeToString())
    (only,) = found
    only.CopyFrom(relation)
    return bytes(parsed.SerializeToString())


def _placeholders(message: Any) -> list[Any]:
    return [
        each
        for each in _relations(message)
        if each.WhichOneof("rel_type") == "read"
        and each.read.named_table.unparsed_identifier == PLACEHOLDER
    ]


def _relations(message: Any) -> Iterator[Any]:
    """Yield every relation in a plan, except those inside packed messages (extensions)."""
    if message.DESCRIPTOR.full_name == "spark.connect.Relation":
        yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in [value] if isinstance(value, Message) else _members(field, value):
            yield from _relations(each)


def _members(field: Any, value: Any) -> Iterator[Any]:
    """Yield the messages that are the values of a repeated field or a map."""
    if field.message_type.GetOptions().map_entry:
        yield from (each for each in value.values() if isinstance(each, Message))
    else:
        yield from value


def _alias(head: str) -> str:
    """Return a name for a temporary view that the text ``head`` does not contain.

    A temporary view would hide a table of the same name.
    """
    words = {token.text.lower().strip("`") for token in tokenize(head) if _is_name(token.kind)}
    name = _ALIAS
    while name in words:
        name += "_"
    return name


def _is_name(kind: TokenKind) -> bool:
    return kind in (TokenKind.WORD, TokenKind.QUOTED_NAME)


def _nullable(data_type: Any) -> Any:
    """Return the type with nulls allowed at every depth, so that all values fit it."""
    found = protos.data_types.DataType()
    found.CopyFrom(data_type)
    match found.WhichOneof("kind"):
        case "array":
            found.array.contains_null = True
            found.array.element_type.CopyFrom(_nullable(found.array.element_type))
        case "map":
            found.map.value_contains_null = True
            found.map.key_type.CopyFrom(_nullable(found.map.key_type))
            found.map.value_type.CopyFrom(_nullable(found.map.value_type))
        case "struct":
            for field in found.struct.fields:
                field.nullable = True
                field.data_type.CopyFrom(_nullable(field.data_type))
    return found
