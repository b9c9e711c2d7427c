"""Reading of clients' messages, and responses to statements that the ring itself has run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.model import RefusedError
from haproc.classify.plans.catalog import as_tables
from haproc.classify.plans.commands import EXPLAINED, read_analysis
from haproc.classify.plans.parsing import SqlPart, parse
from haproc.classify.plans.relations import has_sql
from haproc.engine.arrow import empty_stream, joined, stream_of
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, refused
from haproc.pin.parameters import Given
from haproc.statements.plain_arrow import text_of

# AnalyzePlan: the plans to analyse, which must be found fit to run first.
#
# The analysis of a plan runs relations that write, so none may (`read_analysis`). The plan's tables
# must be as fresh as for a run.


_Plan = protos.base.Plan


def plans_of(request: bytes) -> tuple[bytes, list[bytes]]:
    """Return an AnalyzePlanRequest in the form to send on to Spark, and the plans in it.

    Raises RefusedError if a plan does more than read.
    """
    parsed = parse(protos.base.AnalyzePlanRequest, request)
    try:
        read_analysis(parsed)
    except RefusedError as error:
        if error.error_class != ErrorClass.NESTED_WRITE or not as_tables(parsed):
            raise
        read_analysis(parsed)
        request = bytes(parsed.SerializeToString(deterministic=True))
    kind = parsed.WhichOneof("analyze")
    places = EXPLAINED.get(kind, ())
    return request, [_plan(getattr(getattr(parsed, kind), each)) for each in places]


def _plan(explained: Any) -> bytes:
    if isinstance(explained, _Plan):
        return bytes(explained.SerializeToString())
    plan = _Plan()
    plan.root.CopyFrom(explained)
    return bytes(plan.SerializeToString())


# AddArtifacts: the files in its messages, and the check if a session may add them.
#
# A file comes whole, in a batch with others, or as a beginning and further chunks. Messages in,
# files out; pure.


_base = protos.base
_JVM: Final = ("jars/", "classes/")
_TO_FILES: Final = "forward_to_fs/"


@dataclass(slots=True)
class Arriving:
    """A file of the client's session while its pieces arrive."""

    name: str
    chunks: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of bytes that have arrived."""
        return sum(map(len, self.chunks))

    def pieces(self, bytes_max: int) -> Iterator[bytes]:
        """Yield the arrived bytes in pieces of ``bytes_max``; the last piece may be shorter."""
        rest = bytearray()
        for chunk in self.chunks:
            rest += chunk
            while len(rest) >= bytes_max:
                yield bytes(rest[:bytes_max])
                del rest[:bytes_max]
        if rest:
            yield bytes(rest)


def files_of(requests: Sequence[bytes], *, allow_jars: bool) -> list[Arriving]:
    """Return the files in the messages of AddArtifacts; RequestError if one is not allowed."""
    files: list[Arriving] = []
    for request in (parse(_base.AddArtifactsRequest, each) for each in requests):
        match request.WhichOneof("payload"):
            case "batch":
                files += [Arriving(each.name, [each.data.data]) for each in request.batch.artifacts]
            case "begin_chunk":
                begin = request.begin_chunk
                files.append(Arriving(begin.name, [begin.initial_chunk.data]))
            case "chunk" if files:
                files[-1].chunks.append(request.chunk.data)
            case _:
                raise refused(ErrorClass.BAD_REQUEST, "a message of AddArtifacts adds nothing")
    for each in files:
        _check(each.name, allow_jars=allow_jars)
    return files


def arrived(files: Sequence[Arriving], response: Any) -> list[Arriving]:
    """Return those files that the server has received completely, according to its response."""
    whole = {each.name for each in response.artifacts if each.is_crc_successful}
    return [each for each in files if each.name in whole]


def _check(name: str, *, allow_jars: bool) -> None:
    name = name.replace("\\", "/")  # Spark treats both alike
    if name.startswith(_TO_FILES):
        raise refused(
            ErrorClass.PATH,
            "a file cannot be copied to where the clusters keep files",
            "add it to the session with spark.addArtifacts(…, file=True)",
        )
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise refused(ErrorClass.BAD_REQUEST, f"{name[:100]!r} is no name of a session's file")
    is_jvm = name.startswith(_JVM) or name.endswith((".jar", ".class"))
    if is_jvm and not allow_jars:
        raise refused(
            ErrorClass.JVM_CODE,
            f"{name[:100]} is code for the JVM, which would run inside Spark's driver",
            "have it put on every cluster's class path, or set connect.allow_jars",
        )


# SQL commands of Spark Connect: their text, with their arguments bound into it.
#
# Delta's SQL extension drops Spark's own parameters, and a statement in the log must be complete.
# So arguments become typed literals in the text, also for queries, which then run as such a text.


_EPOCH: Final = datetime(1970, 1, 1)
_OF_LITERAL: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "boolean": ("BOOLEAN", lambda value: str(value).lower()),
    "byte": ("TINYINT", str),
    "short": ("SMALLINT", str),
    "integer": ("INT", str),
    "long": ("BIGINT", str),
    "float": ("FLOAT", repr),
    "double": ("DOUBLE", repr),
    "string": ("STRING", str),
    "binary": ("BINARY", lambda value: base64.b64encode(value).decode()),
    "date": ("DATE", lambda value: str(date(1970, 1, 1) + timedelta(days=value))),
    "timestamp": (
        "TIMESTAMP",
        lambda value: (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=UTC).isoformat(),
    ),
    "timestamp_ntz": (
        "TIMESTAMP_NTZ",
        lambda value: (_EPOCH + timedelta(microseconds=value)).isoformat(),
    ),
}


def given(part: SqlPart) -> Given | None:
    """Return the arguments of a SQL text; None if it has none. Raises RequestError."""
    if not part.positional and not part.named:
        return None
    entries = [_entry(None, value, at) for at, value in enumerate(part.positional, 1)]
    entries += [_entry(name, value) for name, value in part.named]
    return Given(json.dumps(entries).encode())


def _entry(name: str | None, value: Any, at: int = 0) -> dict[str, Any]:
    literal = value.literal if value.DESCRIPTOR.name == "Expression" else value
    kind = literal.WhichOneof("literal_type")
    entry: dict[str, Any] = {} if name is None else {"name": name}
    if kind == "null":
        return {**entry, "value": None}
    if kind == "decimal":
        decimal = literal.decimal
        return {**entry, "value": decimal.value, "type": _decimal_type(decimal)}
    if kind not in _OF_LITERAL:
        raise refused(
            ErrorClass.PARAMETERS,
            f"{_called(name, at)} is {kind or 'an expression'}, not a plain value",
            "write it into the text, or give a number, text, date, timestamp, decimal or binary",
        )
    type_text, written = _OF_LITERAL[kind]
    return {**entry, "value": written(getattr(literal, kind)), "type": type_text}


def _called(name: str | None, at: int) -> str:
    return f"argument {at}" if name is None else f"the argument {name}"


def _decimal_type(decimal: Any) -> str:
    if decimal.HasField("precision") and decimal.HasField("scale"):
        return f"DECIMAL({decimal.precision},{decimal.scale})"
    return "DECIMAL"


def as_command(plan: Any) -> Any:
    """Return the plan of a SQL text as a SQL command; any other plan unchanged.

    Clients in other languages than Python send each SQL text as a relation (a plan's root). Spark
    runs both forms, whatever the text does. Only the answers differ: the answer to a root is its
    rows.
    """
    if plan.WhichOneof("op_type") != "root" or not has_sql(plan.root):
        return plan
    command = type(plan)()
    command.command.sql_command.input.CopyFrom(plan.root)
    return command


def with_text(plan: Any, text: str) -> Any:
    """Return a plan of a SQL text with another text instead, and without arguments."""
    changed = type(plan)()
    changed.CopyFrom(plan)
    command = changed.command.sql_command
    is_root = changed.WhichOneof("op_type") == "root"
    if not is_root and not command.HasField("input"):
        command.sql = text
        for name in ("args", "pos_args", "named_arguments", "pos_arguments"):
            command.ClearField(name)
        return changed
    root = changed.root if is_root else command.input
    if root.WhichOneof("rel_type") == "with_relations":
        root = root.with_relations.root
    common = root.common
    root.sql.Clear()
    root.sql.query = text
    if common.ByteSize():
        root.common.CopyFrom(common)
    return changed


def has_relations(plan: Any) -> bool:
    """True if a SQL command's text comes together with DataFrames that it reads."""
    return bool(plan.command.sql_command.input.WhichOneof("rel_type") == "with_relations")


def plan_id(plan: Any) -> int | None:
    """Return the number that the client gave to a SQL command's relation; None if it gave none."""
    common = plan.command.sql_command.input.common
    return int(common.plan_id) if common.HasField("plan_id") else None


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
    """Return the Spark Connect type of rows with this Arrow schema: a struct."""
    found = protos.data_types.DataType()
    found.struct.SetInParent()
    for each in schema:
        _add_field(found, each)
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
        for each in kind:
            _add_field(found, each)
    else:
        found.unparsed.data_type_string = text_of(kind)


# Spark's answers, made for statements that did not run in the client's session.
#
# A command's result is rows, which the client gets as a relation of their own. They are part of the
# answer, so showing them runs nothing again. Values in, serialized ExecutePlanResponses out.


def sql_result(chunks: Sequence[bytes], plan_id: int | None) -> bytes:
    """Return the response to a SQL command, with the rows of these Arrow streams."""
    response = _base.ExecutePlanResponse()
    relation = response.sql_command_result.relation
    if plan_id is not None:
        relation.common.plan_id = plan_id
    relation.local_relation.data = joined(chunks) if chunks else empty_stream()
    return bytes(response.SerializeToString())


def settings_rows(rows: Sequence[tuple[str, str]]) -> Chunk:
    """Return the result of a SET or RESET as Arrow: rows of a setting's key and its value."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("key", "value"))}
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in columns])
    return Chunk(stream_of(pa.table(columns, schema=schema)), len(rows))


def schema(chunks: Sequence[bytes]) -> bytes:
    """Return the response with the columns of these Arrow streams; no streams, no columns."""
    response = _base.ExecutePlanResponse()
    with pa.ipc.open_stream(chunks[0] if chunks else empty_stream()) as stream:
        response.schema.CopyFrom(schema_of(stream.schema))
    return bytes(response.SerializeToString())


def rows(chunk: Chunk) -> bytes:
    """Return the response that contains this chunk of rows."""
    response = _base.ExecutePlanResponse()
    response.arrow_batch.data = chunk.data
    response.arrow_batch.row_count = chunk.rows
    return bytes(response.SerializeToString())


def observed(found: Sequence[bytes]) -> bytes:
    """Return the response with the metrics that the statement observed (``df.observe``)."""
    response = _base.ExecutePlanResponse()
    for each in found:
        metrics = wire.parsed(_base.ExecutePlanResponse.ObservedMetrics, each)
        response.observed_metrics.append(metrics)
    return bytes(response.SerializeToString())


def only_removes(plan: bytes) -> bool:
    """True if a plan does nothing but drop objects that only one server's Spark session has."""
    command = wire.parsed(_base.Plan, plan).command
    return bool(command.WhichOneof("command_type") == "remove_cached_remote_relation")


def handles_in(responses: Sequence[bytes]) -> set[str]:
    """Return the ids of what a command made in one server's session: checkpoints, models."""
    found: set[str] = set()
    for each in responses:
        response = wire.parsed(_base.ExecutePlanResponse, each)
        found.add(response.checkpoint_command_result.relation.relation_id)
        found.add(response.ml_command_result.operator_info.obj_ref.id)
    return found - {""}
