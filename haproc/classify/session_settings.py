"""The settings that a client may set in its session (SET), and what HAProc does with each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass

# ``SET name=value``, recognised by its text.


_ASSIGNS: Final = re.compile(
    r"\s*SET\s+(?P<quote>`?)(?P<key>[\w.:-]+)(?P=quote)\s*=(?P<value>[^;`'\"]*);?\s*",
    re.IGNORECASE | re.ASCII,
)


def assigned(sql: str) -> tuple[str, str] | None:
    """Return the setting's name and the value in ``SET name=value``; None for any other text."""
    match = _ASSIGNS.fullmatch(sql)
    return None if match is None else (match["key"], match["value"].strip())


# The treatment of a setting that a client sets in its session: one of three.
#
# It *travels*: it goes with each of the session's writes, and every cluster's lane sets it before
# it runs one. So it may change the result of a statement, if the result follows from its value
# alone, and the way in which Spark computes it. It must not change the basis of HAProc's
# transaction markers and checks, the code that runs, or anything that depends on a cluster's own
# files, machine and time. Spark, Delta and Hadoop know some thousands of settings, and each version
# brings new ones: so this is a closed list.
#
# It is *reserved*, and no client may set it: with it the session would read texts and names in
# another way than HAProc does, reach other storage, run other code, or break the basis of writes.
#
# All others are *the session's own*: they hold where its queries run. So the rows of its writes are
# computed there, and a write that rows cannot replace is refused.


_PROGRAMS_NAME: Final = re.compile(r"spark\.([a-z_]\w*)(\.[\w-]+)*", re.ASCII)
"""A setting of the client's own program, such as ``spark.my.own``, if its second part is not in
`_SPARKS`."""
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
"""The words that follow ``spark.`` in settings of Spark (a test finds them in its classes), Delta
and HAProc. Spark may read any setting that begins so, even one that it has not registered."""
_OF_QUERIES: Final = frozenset({"sql", "databricks"})
"""The second words of settings for statements. All others are for the server's own work."""
_OWN_NAME: Final = re.compile(r"(hivevar:|hiveconf:)?[a-z_]\w*", re.ASCII)
"""A variable of the user's own. No setting of Spark, Delta or Hadoop has a name without a dot."""
_OF_CODE: Final = re.compile(r"(class|classes|impl|listeners|providers|serializer)(\.|$)")
"""How a part of a name ends if the setting names code that Spark loads."""


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that are treated alike, and why.

    A name with a dot at its end stands for all names that begin with it.
    """

    reason: str
    names: tuple[str, ...]


TRAVELLING: Final = (
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
            "pandas_on_Spark.",
        ),
    ),
)

RESERVED: Final = (
    Group(
        "HAProc's sessions and its doors rest on it",
        (
            "spark.sql.haproc.",
            "spark.sql.artifact.",
            "spark.sql.connect.",
            "spark.sql.execution.arrow.",
            "spark.sql.execution.interruptOnCancel",
            "spark.sql.legacy.setCommandRejectsSparkCoreConfs",
            "spark.sql.redaction.",
        ),
    ),
    Group(
        "HAProc's marks in the tables rest on it, and that each reads what was last written",
        (
            "spark.databricks.delta.commitInfo.",
            "spark.databricks.delta.coordinatedCommits.",
            "spark.databricks.delta.stalenessLimit",
            "spark.databricks.delta.write.",
        ),
    ),
    Group(
        "it changes how a text is read, and HAProc reads the texts, too",
        (
            "spark.sql.ansi.doubleQuotedIdentifiers",
            "spark.sql.ansi.enforceReservedKeywords",
            "spark.sql.ansi.relationPrecedence",
            "spark.sql.legacy.bangEqualsNot",
            "spark.sql.legacy.consecutiveStringLiterals.",
            "spark.sql.legacy.exponentLiteralAsDecimal.",
            "spark.sql.legacy.keepPartitionSpecAsStringLiteral",
            "spark.sql.legacy.literal.",
            "spark.sql.legacy.parameterSubstitution.",
            "spark.sql.legacy.parseNullPartitionSpecAsStringLiteral",
            "spark.sql.legacy.parseQueryWithoutEof",
            "spark.sql.legacy.parser.",
            "spark.sql.legacy.setopsPrecedence.",
            "spark.sql.legacy.sqlScripting.",
            "spark.sql.parser.",
            "spark.sql.scripting.",
            "spark.sql.timestampType",
            "spark.sql.variable.",
        ),
    ),
    Group(
        "it changes what a name means, and HAProc goes by the names",
        (
            "spark.sql.analyzer.singlePassResolver.",
            "spark.sql.caseSensitive",
            "spark.sql.catalog.",
            "spark.sql.defaultCatalog",
            "spark.sql.defaultPath",
            "spark.sql.functionResolution.",
            "spark.sql.hive.metastore.",
            "spark.sql.legacy.allowTempViewCreationWithMultipleNameparts",
            "spark.sql.legacy.ctePrecedencePolicy",
            "spark.sql.legacy.dataFrameWriterV2IgnorePathOption",
            "spark.sql.legacy.identifierClause",
            "spark.sql.legacy.inlineCTEInCommands",
            "spark.sql.legacy.pathOptionBehavior.",
            "spark.sql.legacy.persistentCatalogFirst",
            "spark.sql.legacy.useV1Command",
            "spark.sql.path.",
            "spark.sql.sources.useV1SourceList",
            "spark.sql.timeTravelTimestampKey",
            "spark.sql.timeTravelVersionKey",
            "spark.databricks.delta.catalog.",
            "spark.databricks.delta.timeTravel.",
            "spark.databricks.delta.v2.",
        ),
    ),
    Group(
        "it decides what a table is made of, or its files, and every cluster makes them by itself",
        (
            "spark.sql.legacy.createHiveTableByDefault",
            "spark.sql.legacy.parquet.datetimeRebaseModeInWrite",
            "spark.sql.legacy.parquet.int96RebaseModeInWrite",
            "spark.sql.parquet.datetimeRebaseModeInWrite",
            "spark.sql.parquet.fieldId.",
            "spark.sql.parquet.int96RebaseModeInWrite",
            "spark.sql.parquet.outputTimestampType",
            "spark.sql.parquet.writeLegacyFormat",
            "spark.sql.sources.default",
            "spark.databricks.delta.properties.defaults.",
        ),
    ),
    Group(
        "it writes what statements read into the server's log",
        (
            "spark.sql.expressionTreeChangeLog.",
            "spark.sql.nameResolutionLog.",
            "spark.sql.planChangeLog.",
        ),
    ),
    Group(
        "it says which code runs",
        (
            "spark.sql.execution.pyspark.python",
            "spark.sql.extensions",
            "spark.sql.extensions.",
            "spark.sql.maven.",
        ),
    ),
)
_MACHINERY: Final = "it belongs to the server, not to one of its sessions"
_CODE: Final = "it says which code runs"
_STORAGE: Final = (
    "it reaches the configuration of the storage, and with it which files a path means"
)


def _folded(groups: Iterable[Group]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reasons by names of settings, and the reasons by beginnings of names.

    The names are in lower case; a beginning ends with a dot.
    """
    reasons = {name.lower(): group.reason for group in groups for name in group.names}
    begins = {name: reason for name, reason in reasons.items() if name.endswith(".")}
    return {name: reasons[name] for name in reasons.keys() - begins.keys()}, begins


_TRAVELLING, _TRAVELLING_BEGINS = _folded(TRAVELLING)
_RESERVED, _RESERVED_BEGINS = _folded(RESERVED)
_INSTEAD: Final = (
    ("spark.sql.ansi.doublequotedidentifiers", "quote names with backquotes"),
    ("spark.sql.variable.substitute", "bind parameters instead of ${…}"),
    ("spark.sql.defaultcatalog", "write USE catalog.schema"),
    ("spark.sql.sources.default", "write USING delta"),
    ("spark.sql.timestamptype", "write TIMESTAMP_NTZ"),
    ("spark.databricks.delta.write.txn", "give the request an id"),
    ("spark.databricks.delta.properties.defaults.", "write TBLPROPERTIES"),
)


def travels(key: str) -> bool:
    """True if every cluster applies a session's writes with the session's value of this setting.

    Case does not matter: a name that Spark spells in another case has no effect there.
    """
    key = key.lower()
    if key in _TRAVELLING or _OWN_NAME.fullmatch(key):
        return True
    if (named := _PROGRAMS_NAME.fullmatch(key)) and named[1] not in _SPARKS:
        return True
    return not key.endswith(".") and key.startswith(tuple(_TRAVELLING_BEGINS))


def reserved(key: str) -> str:
    """Return the reason why no session may set this setting; empty if a session may.

    Case does not matter.
    """
    if travels(key):
        return ""
    key = key.lower()
    for begins, reason in _RESERVED_BEGINS.items():
        if key.startswith(begins):
            return reason
    if key in _RESERVED:
        return _RESERVED[key]
    first, _, rest = key.partition(".")
    if first != "spark":
        return _STORAGE
    if rest.partition(".")[0] not in _OF_QUERIES:
        return _MACHINERY
    return _CODE if _OF_CODE.search(key) else ""


def is_own(key: str) -> bool:
    """True if a setting only holds where the session's queries run, and does not go with writes."""
    return not (travels(key) or reserved(key))


def refusal(key: str) -> RefusedError | None:
    """Return the error for a session that sets or resets this setting; None if it may."""
    reason = reserved(key)
    if not reason:
        return None
    message = f"a session may not change {key[:100]}: {reason}"
    return RefusedError(ErrorClass.RESERVED_SETTING, message, instead(key))


def instead(key: str) -> str:
    """Return what a user can do instead of changing a setting that no session may change."""
    for beginning, advice in _INSTEAD:
        if key.lower().startswith(beginning):
            return advice
    return "set it alike for every cluster where its Spark server is started, or leave it out"
