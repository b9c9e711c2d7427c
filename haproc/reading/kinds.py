"""Which class of operator is which kind of statement: a closed table.

A statement is told by the class of its root, once as parsed and once as analyzed; what stands in no
line here is `Kind.UNKNOWN`. Classes are of Spark 4.2 and Delta 4.4.
"""

from __future__ import annotations

from typing import Final

from haproc.classify.model import Kind

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
"""A kind; the classes of its statements as they are parsed; behind the colon, the further ones that
the analyzer may make of those."""

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
"""Operators that can be the root of what only gives rows."""

RUN_BY_ANALYZER: Final = frozenset({"UnresolvedExecuteImmediate", "CompoundBody"})
"""What hides the statements that it runs; the reader does not analyze it."""

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
    "Call": ("what a procedure does can't be told from a CALL", ""),
    "ScriptTransformation": ("TRANSFORM … USING runs a program", ""),
    "CallMethodViaReflection": ("reflect() runs arbitrary code", ""),
    "TryReflect": ("try_reflect() runs arbitrary code", ""),
    **dict.fromkeys(
        ("CreateFunction", "CreateFunctionCommand"),
        ("the function runs code that HAProc cannot look into", ""),
    ),
}
"""Why what has one of these classes is refused, and what to do instead, where that can be said."""

PARSED: Final[dict[str, Kind]] = {}
"""The kind of a statement by its root's class as it is parsed; not of queries."""
ANALYZED: Final[dict[Kind, frozenset[str]]] = {}
"""The classes that the analyzed root of such a statement can have."""


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
"""What does something, and so stands in no query."""
