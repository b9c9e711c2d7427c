"""What is known as harmless in an analyzed plan: operators, functions, and roots of each kind.

A list of what is allowed: whatever is not in it counts as differing from cluster to cluster. The
names of functions are mostly those of SQL (`haproc.pin.functions`); Catalyst's own expressions that
are printed like calls come on top. What is harmless only under a condition (sums, windows, limits)
is left to `haproc.witness.findings`.
"""

from __future__ import annotations

import re

from haproc.classify.model import Kind
from haproc.pin.functions import Nature, nature


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = frozenset(
    {"Project", "Filter", "Aggregate", "Join", "Union", "Sort", "SubqueryAlias", "Distinct"}
    | {"Intersect", "Except", "Expand", "Generate", "LateralJoin", "SQLFunctionNode", "WithCTE"}
    | {"CTERelationDef", "CTERelationRef", "UnionLoop", "UnionLoopRef", "ResolvedHint"}
    | {"UnresolvedHint", "PipeOperator"}
    | {"OneRowRelation", "Range", "LocalRelation", "ResolvedInlineTable", "Relation", "RelationV2"}
    | {"RepartitionByExpression", "Repartition", "RebalancePartitions", "HiveTableRelation"}
)
"""Operators whose rows depend on nothing but their input."""
CONDITIONAL = frozenset({"Window", "GlobalLimit", "LocalLimit", "Offset"})
"""Harmless where the order is total."""
BY_VALUE = frozenset({"Aggregate", "Distinct", "Intersect", "Except", "Window", "GlobalLimit"})
"""Where one of several rows that compare equal stands for all."""

_CATALYST = _names(
    """
    likeall likeany notlikeall notlikeany lambdafunction outer windowspecdefinition
    specifiedwindowframe unboundedpreceding$
    unboundedfollowing$ currentrow$ listquery scalarsubquery namedlambdavariable pivotfirst
    knownnotnull knownnullable normalizenanandzero precisetimestampconversion promote_precision
    checkoverflow trycast try_cast upcast tempresolvedcolumn some structtype structfield
    decimaltype arraytype maptype chartype varchartype time timestampadd timestampdiff
    element_at inset isnotnull isnull rank dense_rank percent_rank cume_dist count_if
    mergeaction geography geometry gettimestamp static_invoke getarrayitem getstructfield
    getmapvalue getarraystructfields update_fields with_field drop_field secondwithfraction
    extractansiintervaldays extractansiintervalhours extractansiintervalminutes
    extractansiintervalmonths extractansiintervalseconds extractansiintervalyears
    extractintervaldays extractintervalhours extractintervalminutes extractintervalmonths
    extractintervalseconds extractintervalyears multiply_interval divide_interval
    dateaddinterval dateaddyminterval timestampaddinterval timestampaddyminterval timeaddinterval
    subtractdates subtracttimestamps subtracttimes multiplydtinterval multiplyyminterval
    dividedtinterval divideyminterval hoursoftime minutesoftime secondsoftime
    secondsoftimewithfraction checkoverflowintableinsert checkoverflowinsum makedecimal
    decimaladdnooverflowcheck unscaledvalue collationkey empty2null atleastnnonnulls
    """
)
"""Printed like calls, and depend on nothing but their arguments."""
_OF_CHARS = frozenset(
    {
        "CharVarcharCodegenUtils.charTypeWriteSideCheck",
        "CharVarcharCodegenUtils.readSidePadding",
        "CharVarcharCodegenUtils.varcharTypeWriteSideCheck",
    }
)
"""How Spark reads and writes CHAR and VARCHAR: all methods of a class of its own.

Only Spark's own classes are printed without their packages, and a function of the catalog with its
catalog: nothing else has such a name.
"""
_ROOTS: dict[Kind, str] = {
    Kind.INSERT: r"AppendData|InsertIntoHadoopFsRelationCommand|InsertIntoHiveTable"
    r"|InsertIntoDataSourceCommand",
    Kind.INSERT_OVERWRITE: r"OverwriteByExpression|OverwritePartitionsDynamic"
    r"|InsertIntoHadoopFsRelationCommand|InsertIntoHiveTable",
    Kind.UPDATE: r"UpdateCommand",
    Kind.DELETE: r"DeleteCommand|DeleteFromTable",
    Kind.MERGE: r"MergeIntoCommand",
    Kind.TRUNCATE: r"Truncate\w*",
    Kind.CREATE_TABLE_AS: r"CreateTableAsSelect|ReplaceTableAsSelect"
    r"|CreateDataSourceTableAsSelectCommand|\w*CreateHiveTableAsSelectCommand",
    Kind.CREATE_TABLE: r"CreateTable|ReplaceTable|CreateDataSourceTableCommand|CreateTableCommand"
    r"|CreateTableLike\w*",
    Kind.ALTER_TABLE: r"(?:Add|Alter|Drop|Rename|Replace|Recover|Set|Unset)\w*",
    Kind.DROP_TABLE: r"DropTable\w*|NoopCommand",
    Kind.CREATE_VIEW: r"CreateViewCommand|CreateView",
    Kind.ALTER_VIEW: r"(?:Alter|Rename|Set|Unset)\w*",
    Kind.DROP_VIEW: r"DropView\w*|DropTableCommand|DropTempViewCommand|NoopCommand",
    Kind.CREATE_NAMESPACE: r"CreateNamespace",
    Kind.ALTER_NAMESPACE: r"(?:Set|Unset|Alter)(?:Namespace|Database)\w*",
    Kind.DROP_NAMESPACE: r"DropNamespace",
    Kind.CREATE_FUNCTION: r"CreateSQLFunctionCommand|CreateUserDefinedFunctionCommand"
    r"|CreateFunctionCommand",
    Kind.DROP_FUNCTION: r"DropFunction\w*|NoopCommand",
    Kind.ANALYZE: r"Analyze\w*",
    Kind.COMMENT: r"CommentOn\w*|Alter\w*|SetNamespace\w*",
    Kind.GRANT: r"\w*(?:Grant|Revoke|Deny)\w*",
    Kind.OTHER_DDL: r"Refresh\w*|Repair\w*|Recover\w*",
    Kind.TEMPORARY_VIEW: r"CreateViewCommand|CreateTempViewUsing|DropTempViewCommand|DropTable\w*"
    r"|DropFunction\w*|CreateSQLFunctionCommand|CreateVariable|DropVariable|SetVariable"
    r"|NoopCommand",
    Kind.CACHE: r"CacheTable\w*|UncacheTable\w*|ClearCacheCommand|NoopCommand",
}
"""The roots of a statement of each kind, as patterns for the whole name."""
_QUERY_ROOTS = OPERATORS | CONDITIONAL | {"View", "Sample", "Deduplicate", "ScriptTransformation"}


def is_root_of(root: str, kind: Kind) -> bool:
    """Whether a plan with this root does what statements of the kind do."""
    if kind in (Kind.SELECT, Kind.VALUES):
        return root in _QUERY_ROOTS
    pattern = _ROOTS.get(kind)
    return pattern is not None and re.fullmatch(pattern, root) is not None


def is_root(name: str) -> bool:
    """Whether a plan of any statement that is known may begin with this node."""
    return name in _QUERY_ROOTS or any(re.fullmatch(each, name) for each in _ROOTS.values())


def is_query_root(root: str) -> bool:
    """Whether a plan with this root only reads."""
    return root in _QUERY_ROOTS


def nature_of(function: str) -> Nature:
    """Return what is known of a function by the name that stands in a plan."""
    if function in _OF_CHARS:
        return Nature.DETERMINISTIC
    name = function.lower().removeprefix("__pivot_")
    if name in _CATALYST:
        return Nature.DETERMINISTIC
    return nature(name)
