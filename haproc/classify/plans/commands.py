"""What a plan does: reads its query or its command, and requests that only analyse plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from haproc import protos
from haproc.classify.allowed import check_property, check_write_option, locates
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import FILE_SOURCES, refuse_global
from haproc.classify.plans import catalog, delta, expressions, parsing, relations
from haproc.classify.plans.parsing import (
    Does,
    Mode,
    PlanFindings,
    PlanReading,
    members,
    name_in,
    opened,
)
from haproc.classify.plans.relations import has_sql, sql_of, walk
from haproc.failure import ErrorClass

# ``df.write`` and ``df.writeTo``: target, mode and options.


_V1: Any = protos.commands.WriteOperation
_V2: Any = protos.commands.WriteOperationV2
_SAVE: Final = {
    _V1.SAVE_MODE_UNSPECIFIED: Mode.SAVE_ERROR,
    _V1.SAVE_MODE_ERROR_IF_EXISTS: Mode.SAVE_ERROR,
    _V1.SAVE_MODE_IGNORE: Mode.SAVE_IGNORE,
    _V1.SAVE_MODE_APPEND: Mode.SAVE_APPEND,
    _V1.SAVE_MODE_OVERWRITE: Mode.SAVE_OVERWRITE,
}
_WRITE_TO: Final = {
    _V2.MODE_CREATE: Mode.CREATE,
    _V2.MODE_REPLACE: Mode.REPLACE,
    _V2.MODE_CREATE_OR_REPLACE: Mode.CREATE_OR_REPLACE,
    _V2.MODE_APPEND: Mode.APPEND,
    _V2.MODE_OVERWRITE: Mode.OVERWRITE,
    _V2.MODE_OVERWRITE_PARTITIONS: Mode.OVERWRITE_PARTITIONS,
}
KINDS: Final = {
    **dict.fromkeys(Mode, Kind.CREATE_TABLE_AS),
    Mode.INSERT: Kind.INSERT,
    Mode.APPEND: Kind.INSERT,
    Mode.INSERT_OVERWRITE: Kind.INSERT_OVERWRITE,
    Mode.OVERWRITE: Kind.INSERT_OVERWRITE,
    Mode.OVERWRITE_PARTITIONS: Kind.INSERT_OVERWRITE,
}
_CREATING: Final = frozenset(mode for mode, kind in KINDS.items() if kind is Kind.CREATE_TABLE_AS)
_EVOLVING: Final = frozenset({"mergeschema", "overwriteschema"})
_CONDITION: Final = "replacewhere"


def save(message: Any, found: PlanFindings) -> PlanReading:
    """Read ``df.write``; the result is that of a query if it writes nothing (``noop``)."""
    expressions.check(message, found)
    if message.WhichOneof("save_type") != "table":
        return _save_without_table(message, found)
    if message.source and message.source.lower() not in FILE_SOURCES:
        raise parsing.refused_source(message.source, "a table of")
    if message.mode not in _SAVE:
        raise parsing.refused_unknown(f"a save mode {message.mode}")
    mode = _SAVE[message.mode]
    table = message.table
    if table.save_method == _V1.SaveTable.TABLE_SAVE_METHOD_INSERT_INTO:
        mode = Mode.INSERT_OVERWRITE if mode is Mode.SAVE_OVERWRITE else Mode.INSERT
    elif table.save_method != _V1.SaveTable.TABLE_SAVE_METHOD_SAVE_AS_TABLE:
        raise parsing.refused_unknown(f"a way to save into a table, {table.save_method}")
    return _written(message, mode, table.table_name, found)


def write_to(message: Any, found: PlanFindings) -> PlanReading:
    """Read ``df.writeTo``; raises RefusedError."""
    if message.provider and message.provider.lower() not in FILE_SOURCES:
        raise parsing.refused_source(message.provider, "a table of")
    if message.mode not in _WRITE_TO:
        raise parsing.refused_unknown(f"a mode of writeTo, {message.mode}")
    for key in message.table_properties:
        check_property(key.lower())
    return _written(message, _WRITE_TO[message.mode], message.table_name, found)


def _written(message: Any, mode: Mode, table: str, found: PlanFindings) -> PlanReading:
    _take_options(message.options, mode, found)
    expressions.take(message, found)
    evolves = message.with_schema_evolution or any(
        key.lower() in _EVOLVING and value.lower() != "false"
        for key, value in message.options.items()
    )
    return found.reading(
        Does.WRITES,
        KINDS[mode],
        target=name_in(table, "is written"),
        mode=mode,
        kind_if_there=Kind.INSERT if mode is Mode.SAVE_APPEND else None,
        evolves=evolves,
    )


def merge(message: Any, found: PlanFindings) -> PlanReading:
    """Read ``df.mergeInto``; raises RefusedError."""
    expressions.take(message, found)
    return found.reading(
        Does.WRITES,
        Kind.MERGE,
        target=name_in(message.target_table_name, "is merged into"),
        evolves=message.with_schema_evolution,
    )


def _take_options(options: Any, mode: Mode, found: PlanFindings) -> None:
    for key, value in options.items():
        name = key.lower()
        if mode in _CREATING and locates(key):
            found.paths.add(value)
        elif mode in _CREATING and name.startswith("delta."):
            check_property(name)
        elif name == _CONDITION:
            found.expressions.append(value)
        elif name not in _EVOLVING:
            check_write_option(name)


def _save_without_table(message: Any, found: PlanFindings) -> PlanReading:
    """Read ``save()`` without a table; RefusedError if it writes to a path or another system."""
    path = message.path if message.WhichOneof("save_type") == "path" else ""
    path = path or next((v for key, v in message.options.items() if locates(key)), "")
    if message.source.lower() == "noop" and not path:
        return found.reading(Does.QUERIES, Kind.SELECT)
    if not message.source or message.source.lower() in FILE_SOURCES:
        raise parsing.refused_files(f"save({path!r}) writes files")
    raise RefusedError(
        ErrorClass.SOURCE,
        f"save() to {message.source[:80]!r} writes to another system, from one cluster or from all",
        "write to a table; what another system should get, send to it from your program",
    )


# Requests beside plans: AnalyzePlan, which explains some.
#
# To explain a plan Spark has to analyse it, and a relation that writes does so while it is
# analysed. So every plan to explain must only read, for any question.


EXPLAINED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(members("schema explain tree_string is_local is_streaming"), ("plan",)),
    **dict.fromkeys(members("input_files semantic_hash"), ("plan",)),
    "same_semantics": ("target_plan", "other_plan"),
    "persist": ("relation",),
    "unpersist": ("relation",),
    "get_storage_level": ("relation",),
}
"""Questions about plans or relations, and the fields of their messages that hold these."""
PLAIN: Final = members("spark_version ddl_parse json_to_ddl")
"""Questions that come without a plan."""


def read_analysis(request: Any) -> PlanReading:
    """Return what an AnalyzePlanRequest reads; RefusedError if any of its plans does more.

    ``request``: the result of `parsing.parse`. The kind is EXPLAIN, or CACHE for requests to keep
    rows in memory (persist, unpersist).
    """
    wanted = request.WhichOneof("analyze")
    found = PlanFindings()
    if wanted in PLAIN:
        return found.reading(Does.QUERIES, Kind.EXPLAIN)
    if wanted not in EXPLAINED:
        raise parsing.refused_unknown(f"the question {wanted}")
    message = getattr(request, wanted)
    for place in EXPLAINED[wanted]:
        explained = getattr(message, place)
        _take(explained if place == "relation" else _root_to_analyze(explained, wanted), found)
    kind = Kind.CACHE if wanted in ("persist", "unpersist") else Kind.EXPLAIN
    return found.reading(Does.QUERIES, kind)


def _root_to_analyze(plan: Any, wanted: str) -> Any:
    plan = opened(plan)
    kind = plan.WhichOneof("op_type")
    if kind == "command":
        raise parsing.refused_nesting(f"a command whose {wanted} is asked for")
    if kind != "root":
        raise parsing.refused_unknown("neither a query nor a command")
    return plan.root


def _take(relation: Any, found: PlanFindings) -> None:
    if relation.WhichOneof("rel_type") == "catalog":
        catalog.read_nested(relation.catalog, found)
        return
    walk(relation, found)
    expressions.check(relation, found)


# The effect of a plan: its root or command, each known kind in a table.


def read_plan(plan: Any) -> PlanReading:
    """Return what a plan reads and does; RefusedError if it may not run.

    ``plan``: the result of `parsing.parse`; if it is compressed, it is decompressed first.
    """
    return read_opened(opened(plan))


def read_opened(plan: Any) -> PlanReading:
    """Return what a plan that is not compressed reads and does; RefusedError if it may not run."""
    kind = plan.WhichOneof("op_type")
    if kind == "root":
        return _root(plan.root)
    if kind != "command":
        raise parsing.refused_unknown("neither a query nor a command")
    command = plan.command
    does = command.WhichOneof("command_type")
    if does in REFUSED:
        raise REFUSED[does]()
    if does not in NAMED:
        raise parsing.refused_unknown(f"the command {does}")
    return NAMED[does](getattr(command, does))


def _root(relation: Any) -> PlanReading:
    """Read a plan that is a relation: a query, or a call of ``spark.catalog`` of any kind."""
    if relation.WhichOneof("rel_type") == "catalog":
        return catalog.read_root(relation.catalog)
    found = PlanFindings()
    if relation.WhichOneof("rel_type") == "extension":
        extension = delta.relation_in(relation.extension, found)
        if delta.kind_of(extension) not in delta.READING:
            return delta.read_root(extension, found, walk)
    walk(relation, found)
    expressions.check(relation, found)
    return found.reading(Does.QUERIES, Kind.SELECT)


def _sql_command(message: Any) -> PlanReading:
    """Read the command that runs a SQL text, perhaps with DataFrames that the text reads."""
    command, message = message, _in_todays_form(message)
    if not has_sql(message):
        raise parsing.refused_unknown("a SQL command without a text")
    found = PlanFindings()
    for each in message.with_relations.references:
        walk(each, found)
    expressions.check(command, found)
    return found.reading(Does.RUNS_SQL, Kind.UNKNOWN, sql=sql_of(message))


def _in_todays_form(command: Any) -> Any:
    """Return a SQL command's text as a relation, in which newer clients send it."""
    if command.HasField("input"):
        return command.input
    relation = protos.relations.Relation()
    relation.sql.query = command.sql
    for value in command.pos_args:
        relation.sql.pos_args.add().CopyFrom(value)
    for value in command.pos_arguments:
        relation.sql.pos_arguments.add().CopyFrom(value)
    for name, value in command.args.items():
        relation.sql.args[name].CopyFrom(value)
    for name, value in command.named_arguments.items():
        relation.sql.named_arguments[name].CopyFrom(value)
    return relation


def _view(message: Any) -> PlanReading:
    found = PlanFindings()
    name = name_in(message.name, "is a view's")
    if message.is_global:
        refuse_global(("global_temp", *name[-1:]))
    walk(message.input, found)
    expressions.check(message, found)
    return found.reading(Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW, target=name)


def _function(message: Any) -> PlanReading:
    kind = message.WhichOneof("function")
    if kind not in ("python_udf", "python_udtf"):
        raise parsing.refused_jvm_code(f"the function {message.function_name[:100]}")
    found = PlanFindings(user_code=True)
    name = (message.function_name,)
    return found.reading(Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW, target=name)


def _resources(message: Any) -> PlanReading:
    return PlanFindings().reading(Does.QUERIES, Kind.SHOW)


def _writes(
    read: Callable[[Any, PlanFindings], PlanReading], source: str = "input"
) -> Callable[[Any], PlanReading]:
    """Return the function that reads a command: first its source of rows, then the command."""

    def written(message: Any) -> PlanReading:
        found = PlanFindings()
        walk(getattr(message, source), found)
        return read(message, found)

    return written


def _checkpoint(message: Any) -> PlanReading:
    if not message.local:
        raise RefusedError(
            ErrorClass.CHECKPOINT,
            "checkpoint() writes to storage of one cluster",
            "use localCheckpoint(), or write the rows to a table",
        )
    found = PlanFindings()
    walk(message.relation, found)
    expressions.check(message, found)
    return found.reading(Does.HOLDS, Kind.CACHE)


def _forget(message: Any) -> PlanReading:
    return PlanFindings(handles={message.relation.relation_id}).reading(Does.HOLDS, Kind.CACHE)


def _models(message: Any) -> PlanReading:
    found = PlanFindings()
    walk(message, found)
    expressions.check(message, found)
    return relations.read_command(message, found)


NAMED: Final[dict[str, Callable[[Any], PlanReading]]] = {
    "sql_command": _sql_command,
    "create_dataframe_view": _view,
    "register_function": _function,
    "register_table_function": _function,
    "get_resources_command": _resources,
    "write_operation": _writes(save),
    "write_operation_v2": _writes(write_to),
    "merge_into_table_command": _writes(merge, "source_table_plan"),
    "checkpoint_command": _checkpoint,
    "remove_cached_remote_relation_command": _forget,
    "ml_command": _models,
    "extension": delta.read_command,
}


REFUSED: Final[dict[str, Callable[[], RefusedError]]] = {
    "write_stream_operation_start": lambda: parsing.refused_stream("writeStream starts a stream"),
    "streaming_query_command": lambda: parsing.refused_stream("a command for a stream"),
    "streaming_query_manager_command": lambda: parsing.refused_stream(
        "spark.streams asks for streams"
    ),
    "streaming_query_listener_bus_command": lambda: parsing.refused_stream("a listener of streams"),
    "register_data_source": lambda: parsing.refused_source("of your own", "a data source"),
    "create_resource_profile_command": lambda: RefusedError(
        ErrorClass.RESOURCE_PROFILE,
        "a resource profile is known to one cluster's server alone",
        "configure the executors of every cluster alike where its Spark is started",
    ),
    "execute_external_command": lambda: RefusedError(
        ErrorClass.EXTERNAL_COMMAND,
        "a command for another system runs on one cluster's server alone",
        "send it to that system from your program",
    ),
    "pipeline_command": lambda: RefusedError(
        ErrorClass.PIPELINE,
        "a pipeline's flows run on one cluster's server, beside the order of writes",
        "write each table with df.write or SQL",
    ),
}
