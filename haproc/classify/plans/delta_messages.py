"""The messages of Delta Connect, made from a table of their fields.

They come in Delta's Python package, which HAProc does not need for anything else. Their pool is one
of their own, so that they do not meet those of that package if it is there. As in Delta 4.4.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

from haproc import protos, wire

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
"""Each message's fields. All but messages, lists and maps are optional, so that each can be seen
to be set or not; members of a choice are told apart by that, too."""
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
    """Return a pool with Spark Connect's messages, and Delta's built from the table."""
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
    """Make the message of a map of texts."""
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
