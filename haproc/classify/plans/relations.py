"""The relations of a plan, and what each reads; also the relations of ``pyspark.ml`` models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from haproc import protos
from haproc.classify.allowed import check_read_option, locates
from haproc.classify.bounds import COLUMNS_MAX
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import PATH_FORMATS
from haproc.classify.plans import catalog, delta, expressions, parsing
from haproc.classify.plans.parsing import (
    Does,
    PlanFindings,
    PlanReading,
    SqlPart,
    may_hold,
    members,
    name_in,
)
from haproc.failure import ErrorClass

# Models of ``pyspark.ml``: objects of one server's session, and the relations that use them.
#
# A model is lost with the server that fitted it. Reading or writing models as files is refused, and
# so is an operator that runs a text or a class named only by its parameters.


HOLDING: Final = members(
    """
    fit fetch delete evaluate clean_cache get_cache_info create_summary get_model_size
    """
)
FILES: Final = members("write read")
_OWN: Final = "org.apache.spark.ml."
_RUNS_SQL: Final = "SQLTransformer"


def read_relation(message: Any, found: PlanFindings) -> None:
    """Collect what a model's relation uses; `walk` collects the same of the relations below it."""
    kind = message.WhichOneof("ml_type")
    if kind == "transform":
        _take_operator(message.transform, found)
    elif kind == "fetch":
        found.handles.add(message.fetch.obj_ref.id)
    else:
        raise parsing.refused_unknown(f"a relation of models, {kind}")


def _take_operator(message: Any, found: PlanFindings) -> None:
    if message.WhichOneof("operator") == "obj_ref":
        found.handles.add(message.obj_ref.id)
    else:
        _check_operator(message.transformer)


def _check_operator(operator: Any) -> None:
    """Raise RefusedError if a ``pyspark.ml`` operator is not Spark's own, or runs a SQL text."""
    if not operator.name.startswith(_OWN):
        raise parsing.refused_jvm_code(f"the operator {operator.name[:100]!r}")
    if operator.name.endswith(_RUNS_SQL):
        raise RefusedError(
            ErrorClass.HIDDEN_STATEMENT,
            "SQLTransformer hides the statement that it runs",
            "write spark.sql(…, df=df) on the DataFrame that it would transform",
        )


def read_command(message: Any, found: PlanFindings) -> PlanReading:
    """Read a ``pyspark.ml`` command; ``found``: what was collected from its inputs."""
    kind = message.WhichOneof("command")
    if kind in FILES:
        raise RefusedError(
            ErrorClass.MODEL_FILES,
            f"a model's {kind} goes to files of one cluster",
            "keep what you need of the model in your program, or fit it anew",
        )
    if kind not in HOLDING:
        raise parsing.refused_unknown(f"a command for models, {kind}")
    if kind == "fit":
        _check_operator(message.fit.estimator)
    elif kind == "evaluate":
        _check_operator(message.evaluate.evaluator)
    elif kind == "fetch":
        found.handles.add(message.fetch.obj_ref.id)
    elif kind in ("create_summary", "get_model_size"):
        found.handles.add(getattr(message, kind).model_ref.id)
    return found.reading(Does.HOLDS, Kind.CACHE)


# The relations of a plan: each known kind, and the objects that it reads.
#
# Every relation that Spark Connect has is in one of the tables below; a relation in none is
# refused. Relations are followed with an explicit stack, at any depth. Expressions are not searched
# here: no relation can be inside one (a test checks the messages).


_RELATION = protos.relations.Relation.DESCRIPTOR.full_name

READING: Final = members(
    """
    project filter join set_op sort limit aggregate local_relation sample offset range
    subquery_alias repartition to_df with_columns_renamed show_string drop tail with_columns
    hint unpivot to_schema repartition_by_expression collect_metrics parse with_watermark
    html_string as_of_join transpose lateral_join nearest_by_join with_relations fill_na
    drop_na replace summary crosstab describe cov corr approx_quantile freq_items sample_by
    deduplicate
    """
)
"""Relations that only compute something from the relations below them."""
COLUMNS: Final = {
    "project": "expressions",
    "with_columns": "aliases",
    "aggregate": "aggregate_expressions",
}
"""Relations that compute columns, and for each the field that lists the columns."""
USER_CODE: Final = members(
    """
    map_partitions group_map co_group_map apply_in_pandas_with_state
    common_inline_user_defined_table_function
    """
)
"""Relations that run the user's Python functions on rows."""
READING_FUNCTIONS: Final = frozenset(
    ["cloud_files", "read_files", "read_statestore", "table_changes", "table_changes_by_path"]
)
"""Table functions whose first argument is a table's name or a path."""
_TABLE_FUNCTIONS: Final = frozenset({"common_inline_user_defined_table_function"})
COMPUTED_RANGE: Final = "range of computed values"
"""Stands among a plan's relations for a range with computed limits; all other names there are the
protocol's."""
REFUSED: Final = {
    "common_inline_user_defined_data_source": lambda: parsing.refused_source(
        "of your own", "a data source"
    ),
    "unknown": lambda: parsing.refused_unknown("a relation called unknown"),
}


def walk(root: Any, found: PlanFindings) -> None:
    """Collect what a relation and all relations below it read; RefusedError if any does more."""
    stack = [root]
    while stack:
        message = stack.pop()
        if message.DESCRIPTOR.full_name != _RELATION:
            stack.extend(inside(message))
        elif has_sql(message):
            found.sqls.append(sql_of(message))
            stack.extend(message.with_relations.references)
        else:
            stack.extend(inside(_entered(message, found)))


def _entered(relation: Any, found: PlanFindings) -> Any:
    """Collect what this relation itself reads; return the message inside it."""
    kind = relation.WhichOneof("rel_type")
    if kind is None:
        raise parsing.refused_unknown("a relation that is empty, or of a kind that is new")
    message = getattr(relation, kind)
    found.relations.add(kind)
    if kind in COLUMNS:
        _count_columns(len(getattr(message, COLUMNS[kind])), found)
    if kind in READING:
        return message
    if kind in USER_CODE:
        expressions.check_code(message if kind in _TABLE_FUNCTIONS else message.func)
        found.user_code = True
        return message
    if kind in REFUSED:
        raise REFUSED[kind]()
    if kind not in NAMED:
        raise parsing.refused_unknown(f"the relation {kind}")
    NAMED[kind](message, found)
    return message


def _count_columns(count: int, found: PlanFindings) -> None:
    found.columns += count
    if found.columns > COLUMNS_MAX:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan computes more than {COLUMNS_MAX} columns",
            "keep them in an array, a map or in rows, or write them in several steps",
        )


def inside(message: Any) -> Iterator[Any]:
    """Yield the messages in this one that are relations, or may contain relations."""
    for name, repeated in bearing(message.DESCRIPTOR):
        if repeated:
            yield from getattr(message, name)
        elif message.HasField(name):
            yield getattr(message, name)


def has_sql(relation: Any) -> bool:
    """True if the relation is a SQL text, perhaps with DataFrames that the text reads."""
    kind = relation.WhichOneof("rel_type")
    if kind == "with_relations":
        kind = relation.with_relations.root.WhichOneof("rel_type")
    return bool(kind == "sql")


def sql_of(relation: Any) -> SqlPart:
    """Return the SQL text of a relation for which `has_sql` is True, without its DataFrames."""
    inner = relation.with_relations.root if relation.HasField("with_relations") else relation
    message = inner.sql
    return SqlPart(
        message.query,
        (*message.pos_args, *message.pos_arguments),
        (*message.args.items(), *message.named_arguments.items()),
    )


@cache
def bearing(descriptor: Any) -> tuple[tuple[str, bool], ...]:
    """Return a message type's fields that may hold relations, at any depth; True for a list."""
    return tuple(
        (each.name, each.is_repeated)
        for each in descriptor.fields
        if each.message_type is not None and may_hold(each.message_type, _RELATION)
    )


def _read(message: Any, found: PlanFindings) -> None:
    if message.is_streaming:
        raise parsing.refused_stream("readStream reads a stream")
    kind = message.WhichOneof("read_type")
    if kind == "named_table":
        _named(message.named_table, found)
    elif kind == "data_source":
        _data_source(message.data_source, found)
    else:
        raise parsing.refused_unknown("a read of no kind that there is")


def _named(message: Any, found: PlanFindings) -> None:
    found.names.add(name_in(message.unparsed_identifier, "is read"))
    _take_options(message.options, found)


def _data_source(message: Any, found: PlanFindings) -> None:
    if message.format and message.format.lower() not in PATH_FORMATS:
        raise parsing.refused_source(message.format, "the data source")
    found.names_known = False
    found.paths.update(message.paths)
    _take_options(message.options, found)


def _take_options(options: Any, found: PlanFindings) -> None:
    """Collect the names of options, and the values of those options that are paths."""
    for key in options:
        check_read_option(key)
    found.options.update(map(str.lower, options))
    found.paths.update(value for key, value in options.items() if locates(key))


def _changes(message: Any, found: PlanFindings) -> None:
    if message.is_streaming:
        raise parsing.refused_stream("a stream of changes")
    _named(message, found)


def _table_function(message: Any, found: PlanFindings) -> None:
    expressions.called(message, found)
    name = message.function_name.lower()
    if any(each.WhichOneof("expr_type") != "literal" for each in message.arguments):
        found.relations.update({COMPUTED_RANGE} if "range" in name else ())
    if name.rpartition(".")[2].strip("`") not in READING_FUNCTIONS:
        return
    first = message.arguments[0].literal.string if message.arguments else ""
    if name == "table_changes" and first:
        found.names.add(name_in(first, "is read"))
    else:
        found.paths.add(first or f"{name}(…)")


def _remote(message: Any, found: PlanFindings) -> None:
    found.handles.add(message.relation_id)


def _cached(message: Any, found: PlanFindings) -> None:
    found.blobs.add(message.hash)


def _chunked(message: Any, found: PlanFindings) -> None:
    found.blobs.update(filter(None, (*message.dataHashes, message.schemaHash)))


NAMED: Final[dict[str, Callable[[Any, PlanFindings], None]]] = {
    "read": _read,
    "relation_changes": _changes,
    "unresolved_table_valued_function": _table_function,
    "catalog": catalog.read_nested,
    "ml_relation": read_relation,
    "cached_remote_relation": _remote,
    "cached_local_relation": _cached,
    "chunked_cached_local_relation": _chunked,
    "extension": delta.read_nested,
}
"""The functions that read the relations which name what they read, by the relations' names."""
