"""The settings that a client's session may change: those known to leave what is replicated alone.

A client's SET goes with each of its writes, and every cluster's lane sets it before it runs them.
So a setting may change what a statement comes to, if that follows from its value alone, and how
Spark goes about it. It must not change how a text is read or what a name means (HAProc reads the
texts, too), what HAProc's marks and looks rest on, which code runs, or what a cluster's own files,
machine and moment have a say in. Spark, Delta and Hadoop know some thousands of settings, and each
version brings new ones: so this is a list of what is allowed, and all else is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PROGRAMS_NAME: Final = re.compile(r"spark\.([a-z_]\w*)(\.[\w-]+)*", re.ASCII)
"""A program's own setting, such as ``spark.my.own``, if its second part is none of Spark's."""
_SPARKS: Final = frozenset(
    re.findall(
        r"\w+",
        "acls admin api app appstatestore archives auth authenticate barrier blacklist block "
        "blockmanager broadcast buffer cache callstack cdc checkpoint cleaner "
        "clonebasedclosurecleaner connect cores databricks dead decommission default delta "
        "deploy diskstore driver dynamicallocation eventlog excludeonfailure executor "
        "executorenv extralisteners file files graphx hadoop hadooprdd haproc history hive io "
        "home jars job jobgroup kafka kerberos kryo kryoserializer kubernetes launcher local "
        "locality log logconf loglineage logging master maxremoteblocksizefetchtomem memory "
        "metrics modify network plugins port properties pyspark python r rdd redaction "
        "reducer remote repl resource resources resultgetter rpc scheduler security "
        "serializer sessionwindow shuffle shutdown sparkr speculation sql ssl stage "
        "standalone starvation storage streaming submit task taskmetrics test testing "
        "timewindow ui unsafe user watermarkdelayms worker yarn ",
    )
)
"""What stands behind ``spark.`` in texts of Spark's classes (a test reads them), Delta's and ours.
Whatever begins so may be read by Spark, registered or not, so only what is listed above is allowed.
"""
_OWN_NAME: Final = re.compile(r"(hivevar:|hiveconf:)?[a-z_]\w*", re.ASCII)
"""A user's own variable. No setting of Spark, Delta or Hadoop has a name without a dot."""


@dataclass(frozen=True, slots=True)
class Group:
    """Names of settings, or their beginnings with a dot behind them, and why they are harmless."""

    reason: str
    names: tuple[str, ...]


GROUPS: Final = (
    Group(
        "what a statement means follows from the value, which goes with each write",
        (
            "spark.sql.ansi.enabled",
            "spark.sql.charAsVarchar",
            "spark.sql.columnNameOfCorruptRecord",
            "spark.sql.crossJoin.enabled",
            "spark.sql.decimalOperations.allowPrecisionLoss",
            "spark.sql.jsonGenerator.ignoreNullFields",
            "spark.sql.mapKeyDedupPolicy",
            "spark.sql.pivotMaxValues",
            "spark.sql.readSideCharPadding",
            "spark.sql.session.timeZone",
            "spark.sql.sources.partitionOverwriteMode",
            "spark.sql.storeAssignmentPolicy",
            "spark.sql.transposeMaxValues",
            "spark.databricks.delta.replaceWhere.constraintCheck.enabled",
            "spark.databricks.delta.replaceWhere.dataColumns.enabled",
            "spark.databricks.delta.retentionDurationCheck.enabled",
            "spark.databricks.delta.schema.autoMerge.enabled",
            "hive.exec.dynamic.partition",
            "hive.exec.dynamic.partition.mode",
        ),
    ),
    Group(
        "under LEGACY, a write that parses dates by a format becomes rows or is refused",
        ("spark.sql.legacy.timeParserPolicy",),
    ),
    Group(
        "how a query is planned and run; what hangs on that is replicated as rows",
        (
            "spark.sql.adaptive.advisoryPartitionSizeInBytes",
            "spark.sql.adaptive.autoBroadcastJoinThreshold",
            "spark.sql.adaptive.coalescePartitions.",
            "spark.sql.adaptive.enabled",
            "spark.sql.adaptive.forceOptimizeSkewedJoin",
            "spark.sql.adaptive.localShuffleReader.enabled",
            "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold",
            "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled",
            "spark.sql.adaptive.rebalancePartitionsSmallPartitionFactor",
            "spark.sql.adaptive.skewJoin.",
            "spark.sql.autoBroadcastJoinThreshold",
            "spark.sql.broadcastTimeout",
            "spark.sql.bucketing.coalesceBucketsInJoin.",
            "spark.sql.cbo.",
            "spark.sql.codegen.maxFields",
            "spark.sql.codegen.wholeStage",
            "spark.sql.files.maxPartitionBytes",
            "spark.sql.files.maxPartitionNum",
            "spark.sql.files.minPartitionNum",
            "spark.sql.files.openCostInBytes",
            "spark.sql.inMemoryColumnarStorage.batchSize",
            "spark.sql.inMemoryColumnarStorage.compressed",
            "spark.sql.inMemoryColumnarStorage.enableVectorizedReader",
            "spark.sql.join.preferSortMergeJoin",
            "spark.sql.leafNodeDefaultParallelism",
            "spark.sql.maxBroadcastTableSize",
            "spark.sql.maxSinglePartitionBytes",
            "spark.sql.optimizer.dynamicPartitionPruning.",
            "spark.sql.optimizer.runtime.",
            "spark.sql.optimizer.runtimeFilter.",
            "spark.sql.orc.columnarReaderBatchSize",
            "spark.sql.orc.enableNestedColumnVectorizedReader",
            "spark.sql.orc.enableVectorizedReader",
            "spark.sql.orc.filterPushdown",
            "spark.sql.parquet.columnarReaderBatchSize",
            "spark.sql.parquet.enableNestedColumnVectorizedReader",
            "spark.sql.parquet.enableVectorizedReader",
            "spark.sql.parquet.filterPushdown",
            "spark.sql.shuffle.partitions",
            "spark.sql.shuffledHashJoinFactor",
            "spark.sql.sources.bucketing.",
            "spark.sql.sources.parallelPartitionDiscovery.threshold",
            "spark.sql.sources.v2.bucketing.",
            "spark.databricks.delta.merge.repartitionBeforeWrite.enabled",
            "spark.databricks.delta.stats.skipping",
            "mapred.reduce.tasks",
            "mapreduce.job.reduces",
        ),
    ),
    Group(
        "into which files a write goes, not which rows",
        (
            "spark.sql.files.maxRecordsPerFile",
            "spark.sql.orc.compression.codec",
            "spark.sql.parquet.compression.codec",
            "spark.databricks.delta.autoCompact.enabled",
            "spark.databricks.delta.optimize.maxFileSize",
            "spark.databricks.delta.optimize.minFileSize",
            "spark.databricks.delta.optimizeWrite.enabled",
            "spark.databricks.delta.vacuum.parallelDelete.",
        ),
    ),
    Group(
        "what is shown, logged or handed over, and in which pieces",
        (
            "spark.job.description",
            "spark.scheduler.pool",
            "spark.sql.cli.print.header",
            "spark.sql.debug.maxToStringFields",
            "spark.sql.execution.arrow.enabled",
            "spark.sql.execution.arrow.fallback.enabled",
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            "spark.sql.execution.arrow.pyspark.enabled",
            "spark.sql.execution.arrow.pyspark.fallback.enabled",
            "spark.sql.execution.arrow.pyspark.selfDestruct.enabled",
            "spark.sql.maxMetadataStringLength",
            "spark.sql.repl.eagerEval.",
            "spark.sql.thriftserver.scheduler.pool",
            "spark.sql.ui.explainMode",
        ),
    ),
    Group(
        "how Python functions run, and what a program is shown of them; what they give is "
        "replicated as rows",
        (
            "spark.sql.execution.pythonUDF.arrow.enabled",
            "spark.sql.execution.pythonUDTF.arrow.enabled",
            "spark.sql.execution.pyspark.udf.",
            "spark.sql.execution.python.udf.",
            "spark.sql.pyspark.",
        ),
    ),
)

_LISTED: Final = frozenset(name.lower() for group in GROUPS for name in group.names)
_BEGINNINGS: Final = tuple(name for name in _LISTED if name.endswith("."))
_NAMES: Final = _LISTED - {*_BEGINNINGS}
_INSTEAD: Final = (
    ("spark.sql.ansi.doublequotedidentifiers", "quote names with backquotes"),
    ("spark.sql.variable.substitute", "bind parameters instead of ${…}"),
    ("spark.sql.defaultcatalog", "write USE catalog.schema"),
    ("spark.sql.sources.default", "write USING delta"),
    ("spark.databricks.delta.write.txn", "give the request an id"),
    ("spark.databricks.delta.properties.defaults.", "write TBLPROPERTIES"),
)


def allowed(key: str) -> bool:
    """Whether a session may change this setting.

    Names are compared without regard to case: one that Spark spells otherwise does nothing there.
    """
    key = key.lower()
    if key in _NAMES or _OWN_NAME.fullmatch(key):
        return True
    if (named := _PROGRAMS_NAME.fullmatch(key)) and named[1] not in _SPARKS:
        return True
    return not key.endswith(".") and key.startswith(_BEGINNINGS)


def instead(key: str) -> str:
    """Return what to do about a setting that no session may change."""
    for beginning, advice in _INSTEAD:
        if key.lower().startswith(beginning):
            return advice
    return "set it alike for every cluster where its Spark server is started, or leave it out"
