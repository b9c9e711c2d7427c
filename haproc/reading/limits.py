"""Which kind of statement each class of Spark's operators is, and what no statement may contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from haproc.classify.allowed import check_property, check_write_option
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import FILE_SOURCES, plain, refuse_own_schema
from haproc.classify.session_settings import refusal
from haproc.classify.tokens import tokenize
from haproc.failure import ErrorClass
from haproc.reading.moving import moving_in
from haproc.reading.names import UNRESOLVED
from haproc.reading.tree import Node

# The kind of statement of each class of operator: a closed table.
#
# A statement is recognised by the class of its root, once as parsed and once as analyzed; a class
# that is not in the table is `Kind.UNKNOWN`. Classes are of Spark 4.2 and Delta 4.4.


_TABLE: Final = """
insert            InsertIntoStatement UnresolvedInsert : AppendData
                  InsertIntoHadoopFsRelationCommand InsertIntoHiveTable InsertIntoDataSourceCommand
insert_overwrite  OverwriteByExpression OverwritePartitionsDynamic :
                  DeltaDynamicPartitionOverwriteCommand DeltaInsertReplaceOnOrUsingCommand
                  InsertIntoHadoopFsRelationCommand InsertIntoHiveTable InsertIntoDataSourceCommand
update            UpdateTable : UpdateCommand
delete            DeleteFromTable : DeleteCommand
merge             MergeIntoTable : MergeIntoCommand
truncate          TruncateTable TruncatePartition : TruncateDeltaTableCommand TruncateTableCommand
optimize          OptimizeTableCommand DeltaReorgTable : DeltaReorgTableCommand
vacuum            VacuumTableCommand :
analyze           AnalyzeTable AnalyzeTables AnalyzeColumn : AnalyzeTableCommand
                  AnalyzeTablesCommand AnalyzeColumnCommand AnalyzePartitionCommand
create_table      CreateTable ReplaceTable CreateTableLike : CreateTableCommand
                  CreateDataSourceTableCommand CreateTableLikeCommand
create_table_as   CreateTableAsSelect ReplaceTableAsSelect CloneTableStatement :
                  CreateDataSourceTableAsSelectCommand CreateHiveTableAsSelectCommand
                  CreateDeltaTableCommand
alter_table       AddColumns ReplaceColumns AlterColumns DropColumns RenameColumn RenameTable
                  SetTableProperties UnsetTableProperties SetTableLocation SetTableSerDeProperties
                  RecoverPartitions AddPartitions DropPartitions RenamePartitions
                  AlterTableAddConstraint AlterTableDropConstraint AlterTableDropFeature
                  AlterTableClusterBy AlterTableCollation AddCheckConstraint AddConstraint
                  DropConstraint : AlterTableRenameCommand AlterTableAddColumnsCommand
                  AlterTableChangeColumnCommand AlterTableSetPropertiesCommand
                  AlterTableUnsetPropertiesCommand AlterTableSetLocationCommand
                  AlterTableSerDePropertiesCommand RepairTableCommand AlterTableAddPartitionCommand
                  AlterTableDropPartitionCommand AlterTableRenamePartitionCommand
drop_table        DropTable : DropTableCommand NoopCommand
create_view       CreateView : CreateViewCommand
alter_view        AlterViewAs SetViewProperties UnsetViewProperties AlterViewSchemaBinding :
                  AlterViewAsCommand AlterTableSetPropertiesCommand AlterTableRenameCommand
                  AlterTableUnsetPropertiesCommand AlterViewSchemaBindingCommand RenameTable
drop_view         DropView : DropTableCommand NoopCommand
create_namespace  CreateNamespace : CreateDatabaseCommand
alter_namespace   SetNamespaceProperties UnsetNamespacePropertiesCommand
                  SetNamespaceLocation SetNamespaceCollationCommand : AlterDatabasePropertiesCommand
                  AlterDatabaseSetLocationCommand
drop_namespace    DropNamespace : DropDatabaseCommand NoopCommand
create_function   CreateUserDefinedFunction : CreateSQLFunctionCommand
                  CreateUserDefinedFunctionCommand
drop_function     DropFunction : DropFunctionCommand NoopCommand
comment           CommentOnTable CommentOnNamespace : AlterTableSetPropertiesCommand
restore           RestoreTableStatement : RestoreTableCommand LocalRelation
other_ddl         RepairTable RefreshTable RefreshFunction RefreshResource ConvertToDeltaCommand
                  DeltaGenerateCommand : RepairTableCommand RefreshTableCommand
                  RefreshFunctionCommand
set               SetCommand :
reset             ResetCommand :
use               SetCatalogAndNamespace SetNamespaceCommand SetCatalogCommand :
temporary_view    CreateViewCommand CreateTempViewUsing CreateSQLFunctionCommand
                  DropFunctionCommand CreateVariable DropVariable SetVariable :
cache             CacheTable CacheTableAsSelect UncacheTable ClearCacheCommand : NoopCommand
show              ShowTables ShowTablesExtended ShowTablePartition ShowNamespacesCommand ShowColumns
                  ShowTableProperties ShowPartitions ShowFunctions ShowCatalogsCommand
                  ShowCurrentNamespaceCommand ShowViews ShowCreateTable ShowCollationsCommand
                  ShowProceduresCommand ListJarsCommand ListFilesCommand
                  ListArchivesCommand : ShowTablesCommand ShowColumnsCommand
                  ShowDeltaTableColumnsCommand ShowTablePropertiesCommand ShowPartitionsCommand
                  ShowDeltaPartitionsCommand ShowFunctionsCommand ShowViewsCommand
                  ShowCreateTableCommand ShowCreateTableAsSerdeCommand
describe          DescribeRelation DescribeColumn DescribeTablePartition DescribeQueryCommand
                  DescribeFunction DescribeNamespace DescribeDeltaHistory
                  DescribeDeltaDetailCommand DescribeRelationJsonCommand DescribeProcedureCommand :
                  DescribeTableCommand DescribeColumnCommand DescribeFunctionCommand
                  DescribeDeltaHistoryCommand DescribeDatabaseCommand
explain           ExplainCommand :
"""
"""In each line a kind of statement, and the classes of its parsed tree's root; behind the colon,
the further classes that the analyzer may turn these into."""

_QUERIES: Final = """Project Aggregate Filter UnresolvedHaving Sort GlobalLimit LocalLimit LimitAll
    Offset Distinct Deduplicate Union Except Intersect Join LateralJoin SubqueryAlias View
    UnresolvedWith WithCTE CTERelationRef LocalRelation UnresolvedInlineTable ResolvedInlineTable
    OneRowRelation Range UnresolvedRelation RelationTimeTravel LogicalRelation DataSourceV2Relation
    HiveTableRelation Generate Window WithWindowDefinition Expand Pivot Unpivot Transpose Sample
    Repartition RepartitionByExpression RebalancePartitions UnresolvedHint ResolvedHint
    UnresolvedSubqueryColumnAliases UnresolvedTableValuedFunction UnresolvedTVFAliases
    SQLFunctionNode SQLTableFunction UnionLoop Tail PlanWithUnresolvedIdentifier UnresolvedQualify
    DataFrameDropColumns CollectMetrics LogicalRDD AsOfJoin NearestByJoin MapInPandas MapInArrow
    FlatMapGroupsInPandas FlatMapGroupsInArrow FlatMapCoGroupsInPandas FlatMapCoGroupsInArrow
    ArrowEvalPython BatchEvalPython AttachDistributedSequence EmptyRelation"""
QUERIES: Final = frozenset(_QUERIES.split())
"""Operators that can be the root of a statement that does nothing but give rows."""

RUN_BY_ANALYZER: Final = frozenset({"UnresolvedExecuteImmediate", "CompoundBody"})
"""Classes of statements that run other statements, which they hide; the analyzer is not asked,
because it would run them."""

REASONS: Final = {
    "InsertIntoDir": ("this INSERT writes files, or names no table", ""),
    "LoadData": (
        "LOAD DATA moves files of one cluster away from the others",
        "read them with INSERT INTO … SELECT, or send the rows",
    ),
    **dict.fromkeys(
        ("AddJarsCommand", "AddFilesCommand", "AddArchivesCommand"),
        (
            "ADD gives files to one cluster only",
            "install libraries on every cluster the same way",
        ),
    ),
    "Call": ("a CALL does not show what the procedure does", ""),
    "ScriptTransformation": ("TRANSFORM … USING runs a program", ""),
    "CallMethodViaReflection": ("reflect() runs arbitrary code", ""),
    "TryReflect": ("try_reflect() runs arbitrary code", ""),
    **dict.fromkeys(
        ("CreateFunction", "CreateFunctionCommand"),
        ("the function runs code that HAProc cannot look into", ""),
    ),
}
"""Why a statement of each of these classes is refused, and what to write instead, if anything."""

PARSED: Final[dict[str, Kind]] = {}
"""The kind of a statement by the class of its parsed tree's root; queries are in `QUERIES`."""
ANALYZED: Final[dict[Kind, frozenset[str]]] = {}
"""For each kind, the classes that the root of the analyzed tree may have."""


def _fill() -> None:
    kind = ""
    lines: dict[str, str] = {}
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            kind, line = line.split(None, 1)
        lines[kind] = f"{lines.get(kind, '')} {line}"
    for name, text in lines.items():
        parsed, _, further = text.partition(":")
        PARSED.update(dict.fromkeys(parsed.split(), Kind(name)))
        ANALYZED[Kind(name)] = frozenset(parsed.split()) | frozenset(further.split())


_fill()

EFFECTS: Final = (
    frozenset(PARSED).union(*ANALYZED.values(), REASONS) - QUERIES
    | RUN_BY_ANALYZER
    | {"InsertIntoDataSourceDirCommand", "InsertIntoHiveDirCommand"}
)
"""Classes that do more than give rows; no query may contain them."""


# The parts that no statement may contain, by its parsed and its analyzed tree.
#
# Options and properties that could cost a table HAProc's transaction markers, unknown sources and
# classes, and settings that no session may change. The plugin refuses files in Spark.


_DEFINING: Final = frozenset(
    {Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS, Kind.ALTER_TABLE, Kind.OTHER_DDL, Kind.UNKNOWN}
)
_NAMESPACES: Final = frozenset({Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.DROP_NAMESPACE})
_PROPERTIES: Final = ("properties", "tablePropertyOverrides")
_SPARKS_OWN: Final = "__required_write_privileges__"
_HIVES_OWN: Final = ("org.apache.hadoop.hive.", "org.apache.hadoop.mapred.")
_NAMING: Final = frozenset(
    {"CreateViewCommand", "CreateTempViewUsing", "CreateSQLFunctionCommand", "CacheTableAsSelect"}
    | {"DropFunctionCommand", "CreateVariable", "DropVariable"}
)
_BEHIND_NAMES: Final = frozenset({"AS", "DEFAULT", "RETURN", "RETURNS", "USING"})
_FUNCTIONS: Final = frozenset({"CreateSQLFunctionCommand", "CreateUserDefinedFunction"})
_HIDING_FUNCTIONS: Final = frozenset({"java_method", "reflect", "try_reflect"})


def check_session_name(text: str, parsed: Node, analyzed: Node) -> None:
    """Raise RefusedError if IDENTIFIER(…) names a session's object, or the whole statement."""
    if parsed.cls == "PlanWithUnresolvedIdentifier" and analyzed.cls not in QUERIES:
        pass
    elif parsed.cls in _NAMING:
        words = [(token.upper, token.text) for token in tokenize(text)]
        stop = next((i for i, (word, _) in enumerate(words) if word in _BEHIND_NAMES), len(words))
        if ("IDENTIFIER", "(") not in [(a[0], b[1]) for a, b in pairwise(words[: stop + 1])]:
            return
    else:
        return
    raise RefusedError(
        ErrorClass.TABLE_NAME,
        "what the statement is about is named by IDENTIFIER(…): the session's journal keeps what "
        "is the session's by its name, and of other statements nothing else is read",
        "write the name itself",
    )


def hiding_call(nodes: Iterable[Node]) -> str:
    """Return the name of a called function that runs any code; empty if there is none.

    ``nodes``: those of a parsed tree.
    """
    for node in nodes:
        name = [str(each).lower() for each in node["nameParts"] or ()]
        if node.cls == "UnresolvedFunction" and name and name[-1] in _HIDING_FUNCTIONS:
            return name[-1]
    return ""


def foreign_code(root: Node) -> str:
    """Return why a definition may run unknown code or read an unknown source; else empty."""
    for node in root.walk():
        provider = node["provider"]
        if isinstance(provider, str) and provider.lower() not in FILE_SOURCES:
            what = "view" if node.cls == "CreateTempViewUsing" else "table"
            return f"HAProc doesn't know what a {what} of {provider} reads or writes"
        if node.cls == "CreateUserDefinedFunction" and node["language"] != "LanguageSQL":
            return "the function runs code that HAProc cannot look into"
        if node.cls in _FUNCTIONS and (called := _hidden_in(node)):
            return f"{called} in the function's body could run arbitrary code"
        classes = [node["serde"], node["serdeClassName"]]
        if node.cls == "FormatClasses":
            classes += node.fields.values()
        for name in classes:
            if isinstance(name, str) and not name.startswith(_HIVES_OWN):
                return f"{name} may be any class, whose code would run"
    return ""


def _hidden_in(function: Node) -> str:
    """Return a call in a function's body that may run any code, and that no tree shows."""
    text = f"{function['exprText'] or ''} {function['queryText'] or ''}"
    for token, following in pairwise(tokenize(text)):
        name = plain(token).lower()
        if following.is_symbol("(") and name in _HIDING_FUNCTIONS | {"identifier"}:
            return f"{name}()"
    return ""


def check_options(root: Node, kind: Kind) -> None:
    """Raise RefusedError if an option or property in a write is not known to be harmless."""
    for node in root.walk():
        if node.cls in UNRESOLVED:
            for key in node["options"] or ():
                if key != _SPARKS_OWN:
                    check_write_option(key.lower())
        if kind in _DEFINING:
            for key in _defined(node):
                check_property(key.lower())
    if kind in _NAMESPACES:
        for node in root.walk():
            if node.cls == "UnresolvedNamespace":
                refuse_own_schema((node["multipartIdentifier"] or [""])[-1:])


def _defined(node: Node) -> Iterator[str]:
    for name in _PROPERTIES:
        if isinstance(node[name], dict):
            yield from node[name]
    yield from node["propertyKeys"] or ()
    if node.cls == "OptionList":
        for key, _ in node["options"] or ():
            yield key


def check_partition(text: str, parsed: Node) -> None:
    """Raise RefusedError if a literal in PARTITION (…) is read by the clock.

    It cannot be replaced: the trees only have its value.
    """
    if not parsed["partitionSpec"] and not any(
        node.cls == "UnresolvedPartitionSpec" for node in parsed.walk()
    ):
        return
    if found := moving_in(text):
        raise RefusedError(
            ErrorClass.NONDETERMINISTIC,
            f"{found[:60]} is another value on every cluster",
            "write the value itself as the partition's",
        )


def check_setting(root: Node) -> None:
    """Raise RefusedError if SET or RESET changes a setting that no session may change."""
    key = root["config"]
    if root.cls == "SetCommand":
        name, value = root["kv"] or ("", None)
        key = name if value is not None else None
    if key is not None and (error := refusal(key)) is not None:
        raise error


def is_placed(root: Node) -> bool:
    """True if a definition says where the data shall be (LOCATION)."""
    return any(isinstance(node["location"], str) for node in root.walk())
