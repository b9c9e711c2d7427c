"""Delta's own API over Spark Connect (``DeltaTable``): its messages, and what each one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

from haproc import protos, wire
from haproc.classify.allowed import check_property
from haproc.classify.model import Kind, RefusedError
from haproc.classify.plans import expressions, parsing
from haproc.classify.plans.parsing import Does, PlanFindings, PlanReading, members, name_in, parse
from haproc.failure import ErrorClass

# The messages of Delta Connect, made from a table of their fields.
#
# Delta's Python package has them, too, but HAProc does not need it for anything else. These here
# have their own pool, so that they do not collide with the package's. As in Delta 4.4.


_FIELDS: Final = """
DeltaTable            | 1 path Path, 2 table_or_view_name string
Path                  | 1 path string, 2 hadoop_conf map
DeltaCommand          | 1 clone_table CloneTable, 2 vacuum_table VacuumTable
                      | 3 upgrade_table_protocol UpgradeTableProtocol, 4 generate Generate
                      | 5 create_delta_table CreateDeltaTable
                      | 6 add_feature_support AddFeatureSupport
                      | 7 drop_feature_support DropFeatureSupport
CloneTable            | 1 table DeltaTable, 2 target string, 3 version int32, 4 timestamp string
                      | 5 is_shallow bool, 6 replace bool, 7 properties map
VacuumTable           | 1 table DeltaTable, 2 retention_hours double
UpgradeTableProtocol  | 1 table DeltaTable, 2 reader_version int32, 3 writer_version int32
Generate              | 1 table DeltaTable, 2 mode string
CreateDeltaTable      | 1 mode int32, 2 table_name string, 3 location string, 4 comment string
                      | 5 columns Column*, 6 partitioning_columns string*, 7 properties map
                      | 8 clustering_columns string*
Column                | 1 name string, 2 data_type spark.DataType, 3 nullable bool
                      | 4 generated_always_as string, 5 comment string
                      | 6 identity_info IdentityInfo
IdentityInfo          | 1 start int64, 2 step int64, 3 allow_explicit_insert bool
AddFeatureSupport     | 1 table DeltaTable, 2 feature_name string
DropFeatureSupport    | 1 table DeltaTable, 2 feature_name string, 3 truncate_history bool
DeltaRelation         | 1 scan Scan, 2 describe_history DescribeHistory
                      | 3 describe_detail DescribeDetail, 4 convert_to_delta ConvertToDelta
                      | 5 restore_table RestoreTable, 6 is_delta_table IsDeltaTable
                      | 7 delete_from_table DeleteFromTable, 8 update_table UpdateTable
                      | 9 merge_into_table MergeIntoTable, 10 optimize_table OptimizeTable
Scan                  | 1 table DeltaTable
DescribeHistory       | 1 table DeltaTable
DescribeDetail        | 1 table DeltaTable
ConvertToDelta        | 1 identifier string, 2 partition_schema_string string
                      | 3 partition_schema_struct spark.DataType
RestoreTable          | 1 table DeltaTable, 2 version int64, 3 timestamp string
IsDeltaTable          | 1 path string
DeleteFromTable       | 1 target spark.Relation, 2 condition spark.Expression
UpdateTable           | 1 target spark.Relation, 2 condition spark.Expression
                      | 3 assignments Assignment*
MergeIntoTable        | 1 target spark.Relation, 2 source spark.Relation
                      | 3 condition spark.Expression, 4 matched_actions Action*
                      | 5 not_matched_actions Action*, 6 not_matched_by_source_actions Action*
                      | 7 with_schema_evolution bool
Action                | 1 condition spark.Expression, 2 delete_action Nothing
                      | 3 update_action Assignments, 4 update_star_action Nothing
                      | 5 insert_action Assignments, 6 insert_star_action Nothing
Nothing               |
Assignments           | 1 assignments Assignment*
Assignment            | 1 field spark.Expression, 2 value spark.Expression
OptimizeTable         | 1 table DeltaTable, 2 partition_filters string*, 3 zorder_columns string*
"""
"""The fields of each of Delta's messages. All except messages, lists and maps are optional, so each
shows whether it is set; that also tells which member of a choice is set."""
_File = descriptor_pb2.FileDescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
    "double": _Field.TYPE_DOUBLE,
}
_FILE: Final = "haproc/delta.proto"
_PACKAGE: Final = "delta.connect"


def _pool() -> Any:
    """Return a pool of message types: Spark Connect's, and Delta's as `_FIELDS` lists them."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(wire.parsed(_File, any_pb2.DESCRIPTOR.serialized_pb))
    _add_with_imports(pool, protos.relations.DESCRIPTOR, {any_pb2.DESCRIPTOR.name})
    file = _File(name=_FILE, package=_PACKAGE, syntax="proto3")
    file.dependency.extend(
        each.DESCRIPTOR.name for each in (protos.relations, protos.expressions, protos.data_types)
    )
    message: Any = None
    for line in _FIELDS.strip().splitlines():
        name, _, fields = line.partition("|")
        if name.strip():
            message = file.message_type.add(name=name.strip())
        for each in filter(None, map(str.strip, fields.split(","))):
            _add_field(message, *each.split())
    pool.Add(file)
    return pool


def _add_with_imports(pool: Any, file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for each in file.dependencies:
        _add_with_imports(pool, each, added)
    pool.Add(wire.parsed(_File, file.serialized_pb))


def _add_field(message: Any, number: str, name: str, kind: str) -> None:
    repeated = kind.endswith("*") or kind == "map"
    field = message.field.add(
        name=name,
        number=int(number),
        label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
    )
    kind = kind.rstrip("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        if not repeated:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
        return
    field.type = _Field.TYPE_MESSAGE
    if kind == "map":
        entry = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        _add_entry(message.nested_type.add(name=entry))
        field.type_name = f".{_PACKAGE}.{message.name}.{entry}"
    elif kind.startswith("spark."):
        field.type_name = f".spark.connect.{kind.removeprefix('spark.')}"
    else:
        field.type_name = f".{_PACKAGE}.{kind}"


def _add_entry(entry: Any) -> None:
    """Add the two fields of a map's entries; keys and values are texts."""
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(
            name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL
        )


_OWN = _pool()
DeltaCommand: Any = message_factory.GetMessageClass(
    _OWN.FindMessageTypeByName(f"{_PACKAGE}.DeltaCommand")
)
DeltaRelation: Any = message_factory.GetMessageClass(
    _OWN.FindMessageTypeByName(f"{_PACKAGE}.DeltaRelation")
)


# Delta's own API over Spark Connect: extensions of plans, each known kind in a table.
#
# ``DeltaTable`` writes by relations as well as by commands: update, delete, merge, optimize,
# restore and convert run as soon as Spark meets them, at any place, so they must be a plan's root.


EXTENSIONS_MAX: Final = 200
"""The most extensions (uses of DeltaTable) in one plan; each is parsed separately. Chosen, not
measured."""
READING: Final = members("scan describe_history describe_detail is_delta_table")
VERSIONS: Final = "versions of a table"
"""Stands among a plan's relations if it shows a table's versions: they differ between clusters."""

Walk = Callable[[Any, PlanFindings], None]


def relation_in(extension: Any, found: PlanFindings) -> Any:
    """Return Delta's relation in an extension; RefusedError if the extension is not Delta's."""
    return _unpacked(extension, DeltaRelation, found)


def kind_of(message: Any) -> str:
    """Return the name of the relation or command in a message; RefusedError if it has not one."""
    kinds: list[str] = [each.name for each, _ in message.ListFields()]
    if len(kinds) != 1:
        raise parsing.refused_unknown("an extension of Delta's of no kind that there is")
    return kinds[0]


def read_nested(extension: Any, found: PlanFindings) -> None:
    """Collect what a relation inside a plan reads; RefusedError if it does more than read."""
    relation = relation_in(extension, found)
    kind = kind_of(relation)
    if kind not in READING:
        raise parsing.refused_nesting(f"DeltaTable's {kind}")
    message = getattr(relation, kind)
    if kind == "is_delta_table":
        found.paths.add(message.path)
    elif message.table.HasField("path"):
        found.paths.add(message.table.path.path)
        found.names_known = False
    else:
        found.names.add(name_in(message.table.table_or_view_name, "is read"))
    if kind != "scan":
        found.relations.add(VERSIONS)


def read_root(relation: Any, found: PlanFindings, walk: Walk) -> PlanReading:
    """Read a relation of Delta's that writes, and is the whole plan."""
    kind = kind_of(relation)
    message = getattr(relation, kind)
    if kind not in WRITING:
        raise parsing.refused_unknown(f"DeltaTable's {kind}")
    expressions.take(message, found)
    if kind == "merge_into_table":
        walk(message.source, found)
    return WRITING[kind](message, found)


def read_command(extension: Any) -> PlanReading:
    """Read a command of Delta's."""
    found = PlanFindings()
    command = _unpacked(extension, DeltaCommand, found)
    kind = kind_of(command)
    if kind not in COMMANDS:
        raise parsing.refused_unknown(f"DeltaTable's {kind}")
    return COMMANDS[kind](getattr(command, kind), found)


def _unpacked(extension: Any, kind: Any, found: PlanFindings) -> Any:
    if extension.type_url.rpartition("/")[2] != kind.DESCRIPTOR.full_name:
        raise parsing.refused_unknown(f"an extension of type {extension.type_url[:100]}")
    found.extensions += 1
    if found.extensions > EXTENSIONS_MAX:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan reads DeltaTables more than {EXTENSIONS_MAX} times",
            "use spark.table(…) instead, or do it in several steps",
        )
    return parse(kind, extension.value)


def _name(table: Any) -> tuple[str, ...]:
    if table.HasField("path"):
        raise parsing.refused_files(f"DeltaTable.forPath({table.path.path!r}) names files")
    return name_in(table.table_or_view_name, "is written")


def _scanned(relation: Any, found: PlanFindings) -> tuple[str, ...]:
    """Return the name of the table that an UPDATE, DELETE or MERGE changes, under any alias."""
    kind = relation.WhichOneof("rel_type")
    while kind == "subquery_alias":
        relation = relation.subquery_alias.input
        kind = relation.WhichOneof("rel_type")
    scan = relation_in(relation.extension, found) if kind == "extension" else None
    if scan is None or kind_of(scan) != "scan":
        raise parsing.refused_unknown("a target that is no DeltaTable")
    return _name(scan.scan.table)


def _changes(kind: Kind) -> Callable[[Any, PlanFindings], PlanReading]:
    def changed(message: Any, found: PlanFindings) -> PlanReading:
        evolves = kind is Kind.MERGE and message.with_schema_evolution
        target = _scanned(message.target, found)
        return found.reading(Does.WRITES, kind, target=target, evolves=evolves)

    return changed


def _optimize(message: Any, found: PlanFindings) -> PlanReading:
    found.expressions += message.partition_filters
    return found.reading(Does.WRITES, Kind.OPTIMIZE, target=_name(message.table))


def _restore(message: Any, found: PlanFindings) -> PlanReading:
    raise RefusedError(
        ErrorClass.NONDETERMINISTIC,
        "each cluster numbers and dates the versions of its tables itself",
        "write the rows that the table should hold",
    )


def _convert(message: Any, found: PlanFindings) -> PlanReading:
    target = name_in(message.identifier, "is converted")
    return found.reading(Does.WRITES, Kind.OTHER_DDL, target=target)


WRITING: Final[dict[str, Callable[[Any, PlanFindings], PlanReading]]] = {
    "delete_from_table": _changes(Kind.DELETE),
    "update_table": _changes(Kind.UPDATE),
    "merge_into_table": _changes(Kind.MERGE),
    "optimize_table": _optimize,
    "restore_table": _restore,
    "convert_to_delta": _convert,
}
"""The functions that read the relations which write, by the relations' names."""


def _named(kind: Kind) -> Callable[[Any, PlanFindings], PlanReading]:
    def read(message: Any, found: PlanFindings) -> PlanReading:
        return found.reading(Does.WRITES, kind, target=_name(message.table))

    return read


def _check_properties(properties: Mapping[str, str]) -> None:
    for key in properties:
        check_property(key.lower())


def _create(message: Any, found: PlanFindings) -> PlanReading:
    if not message.HasField("table_name"):
        raise parsing.refused_files(f"a table at {message.location!r} without a name")
    if message.HasField("location"):
        found.paths.add(message.location)
    _check_properties(message.properties)
    for column in message.columns:
        if column.HasField("generated_always_as"):
            found.expressions.append(column.generated_always_as)
    target = name_in(message.table_name, "is created")
    return found.reading(Does.WRITES, Kind.CREATE_TABLE, target=target)


def _clone(message: Any, found: PlanFindings) -> PlanReading:
    _check_properties(message.properties)
    found.names.add(_name(message.table))
    if message.HasField("version") or message.HasField("timestamp"):
        found.relations.add(VERSIONS)
    target = name_in(message.target, "is cloned to")
    return found.reading(Does.WRITES, Kind.CREATE_TABLE_AS, target=target)


def _feature(message: Any, found: PlanFindings) -> PlanReading:
    check_property(f"delta.feature.{message.feature_name.lower()}")
    return found.reading(Does.WRITES, Kind.ALTER_TABLE, target=_name(message.table))


COMMANDS: Final[dict[str, Callable[[Any, PlanFindings], PlanReading]]] = {
    "clone_table": _clone,
    "vacuum_table": _named(Kind.VACUUM),
    "upgrade_table_protocol": _named(Kind.ALTER_TABLE),
    "generate": _named(Kind.OTHER_DDL),
    "create_delta_table": _create,
    "add_feature_support": _feature,
    "drop_feature_support": _feature,
}
