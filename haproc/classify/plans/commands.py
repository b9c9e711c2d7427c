"""What a plan does: its root or command, each kind that there is in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from haproc import protos
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import refuse_global
from haproc.classify.plans import catalog, delta, expressions, models, refusals, writes
from haproc.classify.plans.names import name_in
from haproc.classify.plans.parsing import opened
from haproc.classify.plans.reading import Does, PlanFindings, PlanReading
from haproc.classify.plans.relations import has_sql, sql_of, walk
from haproc.failure import ErrorClass


def read_plan(plan: Any, data: bytes | None = None) -> PlanReading:
    """Return what a plan, parsed by `parsing.parse`, does; RefusedError if it may not run.

    A plan that its client has compressed is read as what it was before (`parsing.opened`).
    ``data``: the bytes that it was parsed from, or of all of its request; saves writing them anew.
    """
    whole = opened(plan)
    return read_opened(whole, data if whole is plan else None)


def read_opened(plan: Any, data: bytes | None = None) -> PlanReading:
    """Return the same of a plan that is not compressed, or not any more."""
    kind = plan.WhichOneof("op_type")
    if kind == "root":
        return _root(plan.root, data)
    if kind != "command":
        raise refusals.unknown("neither a query nor a command")
    command = plan.command
    does = command.WhichOneof("command_type")
    if does in REFUSED:
        raise REFUSED[does]()
    if does not in TOLD:
        raise refusals.unknown(f"the command {does}")
    return TOLD[does](getattr(command, does))


def _root(relation: Any, data: bytes | None) -> PlanReading:
    """A query, or a call of the catalog, which may do anything."""
    if relation.WhichOneof("rel_type") == "catalog":
        return catalog.read_root(relation.catalog)
    found = PlanFindings()
    if relation.WhichOneof("rel_type") == "extension":
        extension = delta.relation_in(relation.extension, found)
        if delta.kind_of(extension) not in delta.READING:
            return delta.read_root(extension, found, walk)
    walk(relation, found)
    expressions.check(relation, found, data)
    return found.reading(Does.QUERIES, Kind.SELECT)


def _sql_command(message: Any) -> PlanReading:
    """A SQL text by itself, or with the DataFrames that it reads."""
    command, message = message, _in_todays_form(message)
    if not has_sql(message):
        raise refusals.unknown("a SQL command without a text")
    found = PlanFindings()
    for each in message.with_relations.references:
        walk(each, found)
    expressions.check(command, found)
    return found.reading(Does.RUNS_SQL, Kind.UNKNOWN, sql=sql_of(message))


def _in_todays_form(command: Any) -> Any:
    """Return the relation that a command of an older client would hold today."""
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
        raise refusals.jvm_code(f"the function {message.function_name[:100]}")
    found = PlanFindings(user_code=True)
    name = (message.function_name,)
    return found.reading(Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW, target=name)


def _resources(message: Any) -> PlanReading:
    return PlanFindings().reading(Does.QUERIES, Kind.SHOW)


def _writes(
    read: Callable[[Any, PlanFindings], PlanReading], source: str = "input"
) -> Callable[[Any], PlanReading]:
    """Return what reads such a command: first the rows that it takes, then itself."""

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
    return models.read_command(message, found)


TOLD: Final[dict[str, Callable[[Any], PlanReading]]] = {
    "sql_command": _sql_command,
    "create_dataframe_view": _view,
    "register_function": _function,
    "register_table_function": _function,
    "get_resources_command": _resources,
    "write_operation": _writes(writes.save),
    "write_operation_v2": _writes(writes.write_to),
    "merge_into_table_command": _writes(writes.merge, "source_table_plan"),
    "checkpoint_command": _checkpoint,
    "remove_cached_remote_relation_command": _forget,
    "ml_command": _models,
    "extension": delta.read_command,
}


def _external() -> RefusedError:
    return RefusedError(
        ErrorClass.EXTERNAL_COMMAND,
        "a command for another system runs on one cluster's server alone",
        "send it to that system from your program",
    )


def _pipeline() -> RefusedError:
    return RefusedError(
        ErrorClass.PIPELINE,
        "a pipeline's flows run on one cluster's server, beside the order of writes",
        "write each table with df.write or SQL",
    )


def _profile() -> RefusedError:
    return RefusedError(
        ErrorClass.RESOURCE_PROFILE,
        "a resource profile is known to one cluster's server alone",
        "configure the executors of every cluster alike where its Spark is started",
    )


REFUSED: Final[dict[str, Callable[[], RefusedError]]] = {
    "write_stream_operation_start": lambda: refusals.streaming("writeStream starts a stream"),
    "streaming_query_command": lambda: refusals.streaming("a command for a stream"),
    "streaming_query_manager_command": lambda: refusals.streaming("spark.streams asks for streams"),
    "streaming_query_listener_bus_command": lambda: refusals.streaming("a listener of streams"),
    "register_data_source": lambda: refusals.source("of your own", "a data source"),
    "create_resource_profile_command": _profile,
    "execute_external_command": _external,
    "pipeline_command": _pipeline,
}
