"""The queries that Spark reads, so that a plan that writes can be judged.

Spark's analyzer reads queries, not commands. So the input of a write is read as a query of its own,
and conditions and values beside the input as queries over the rows that they are computed from.
Rows inside a plan are left out, because only their columns affect how Spark reads the plan.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.plans import delta
from haproc.classify.plans.parsing import PlanFindings
from haproc.classify.plans.relations import inside
from haproc.pin.plan_parts import input_of
from haproc.pin.sqltypes import quote_name
from haproc.reading.frames import SHOWN, runs_its_input

ColumnTypes: TypeAlias = Sequence[tuple[str, str]]
"""Columns: each name with the text of the column's type."""
ROWS: Final = "haproc_rows"
"""The name by which a SQL statement refers to the rows that come with it."""
_TEXTS: Final = ("string", "char", "variant")
_MOMENT: Final = "timestamp"
_DEFINING: Final = ("delta.", "identity", "generation")
_CONDITION: Final = "replacewhere"

_Relation: Any = protos.relations.Relation
_INNER: Any = protos.relations.Join.JOIN_TYPE_INNER


def input_question(plan: Any) -> bytes | None:
    """Return the query, as a plan, whose rows a write takes; None if the write has no input."""
    source = input_of(plan)
    return None if source is None else _root(source)


def condition_questions(plan: Any, rows: Any = None) -> tuple[bytes, ...]:
    """Return queries, as plans, over the conditions of a write, and the values beside its input.

    ``rows``: the relation that replaces the input in them (`empty_rows`); None: the input stays.
    """
    if plan.WhichOneof("op_type") == "command":
        command = plan.command
        kind = command.WhichOneof("command_type")
        relations = _CONDITIONS[kind](getattr(command, kind), rows) if kind in _CONDITIONS else ()
    elif plan.root.WhichOneof("rel_type") == "extension":
        relations = _of_delta(delta.relation_in(plan.root.extension, PlanFindings()), rows)
    else:
        relations = ()
    return tuple(_root(each) for each in relations)


def table_questions(plan: Any) -> tuple[bytes, ...]:
    """Return queries, as plans, that together show all tables the DataFrames of a plan read.

    Spark computes some relations while it reads them. Such a relation is not read itself: its input
    is, and its own expressions over that input. A SQL text that comes with DataFrames is left out:
    `text_question` reads it together with them.

    If Spark runs a query inside another one, it comes first. So the rights to its tables are
    checked before an error of the outer query can show values of a table that the user may not
    read.
    """
    given = plan.command.sql_command.input.with_relations.references
    found: list[Any] = []
    stack: list[tuple[Any, bool, Any]] = [(each, True, ()) for each in given]
    stack = stack or [(plan, False, ())]
    while stack:
        message, is_shown, frames = stack.pop()
        if message.DESCRIPTOR is _Relation.DESCRIPTOR:
            if message.WhichOneof("rel_type") in SHOWN and not is_shown:
                found.append(message)
            is_shown = not runs_its_input(message)
            if not is_shown and (values := _computed_first(message)):
                hidden = getattr(message, message.WhichOneof("rel_type"))
                found.append(_beside(_projected(hidden.input, values), frames))
            if message.HasField("with_relations"):
                own = message.with_relations
                stack.append((own.root, is_shown, own.references))
                stack += [(each, is_shown, ()) for each in own.references]
                continue
        stack += [(each, is_shown, ()) for each in inside(message)]
    return tuple(_root(each) for each in reversed(found))


def input_questions(plan: Any) -> tuple[bytes, ...]:
    """Return such queries as `table_questions` does, but only of the DataFrames a write takes."""
    if plan.command.HasField("sql_command"):
        return table_questions(plan)
    source, whole = input_of(plan), protos.base.Plan()
    if source is None:
        return ()
    whole.root.CopyFrom(source)
    return table_questions(whole)


def _computed_first(relation: Any) -> list[Any]:
    """Return the expressions of a relation that Spark computes while it reads the relation."""
    if relation.HasField("aggregate"):
        return [relation.aggregate.pivot.col]
    return list(_own_expressions(relation))


def _beside(relation: Any, frames: Any) -> Any:
    """Return the relation together with ``frames``, to which its subqueries refer by number."""
    if not frames:
        return relation
    whole = _Relation()
    whole.with_relations.root.CopyFrom(relation)
    whole.with_relations.references.extend(frames)
    return whole


def _own_expressions(message: Any) -> Iterator[Any]:
    """Yield a relation's expressions, without those of the relations inside it."""
    for field, value in message.ListFields():
        for each in _messages(field, value) if field.message_type is not None else ():
            if each.DESCRIPTOR is protos.expressions.Expression.DESCRIPTOR:
                yield each
            elif each.DESCRIPTOR is not _Relation.DESCRIPTOR:
                yield from _own_expressions(each)


def shape_of(question: bytes) -> bytes | None:
    """Return a query without the numbers of its steps: equal for queries that differ only in these.

    Every DataFrame numbers its steps anew. None if an expression refers to a step by its number.
    """
    plan = wire.parsed(protos.base.Plan, question)
    stack = [plan.root]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():
            if field.name == "common":
                message.ClearField(field.name)  # numbers, and where in a program it was written
            elif field.name in ("plan_id", "subquery_expression"):
                return None
            elif field.message_type is not None:
                stack += _messages(field, value)
    return bytes(plan.SerializeToString(deterministic=True))


def _messages(field: Any, value: Any) -> list[Any]:
    if not field.is_repeated:
        return [value]
    if field.message_type.GetOptions().map_entry:
        return [each for each in value.values() if hasattr(each, "ListFields")]
    return list(value)


def with_text(plan: Any, text: str) -> bytes:
    """Return the plan of a SQL text that comes with DataFrames, with ``text`` in its place."""
    changed = protos.base.Plan()
    changed.CopyFrom(plan)
    changed.command.sql_command.input.with_relations.root.sql.query = text
    return bytes(changed.SerializeToString())


def text_question(plan: Any, text: str, *, rows: bool = False) -> bytes:
    """Return the query ``text`` as a plan, with the DataFrames that ``plan`` has for its own text.

    ``rows``: False if it is only to be read: then rows inside the DataFrames are left out.
    """
    question = protos.base.Plan()
    question.root.CopyFrom(plan.command.sql_command.input)
    question.root.with_relations.root.sql.query = text
    if not rows:
        _leave_rows_out(question.root)
    return bytes(question.SerializeToString())


def text_over(head: str, relation: Any) -> bytes:
    """Return the plan of a statement: ``head``, then a SELECT of all rows of ``relation``."""
    plan = protos.base.Plan()
    statement = plan.command.sql_command.input.with_relations
    # A line break, because a head may end in a comment.
    statement.root.sql.query = f"{head}\nSELECT * FROM {ROWS}"
    reference = statement.references.add().subquery_alias
    reference.alias = ROWS
    reference.input.CopyFrom(relation)
    return bytes(plan.SerializeToString())


def _of_save(message: Any, rows: Any) -> Iterator[Any]:
    yield from _in_options(message.options, message.table.table_name)


def _of_write_to(message: Any, rows: Any) -> Iterator[Any]:
    yield from _in_options(message.options, message.table_name)
    if message.HasField("overwrite_condition"):
        yield _filtered(_table(message.table_name), message.overwrite_condition)


def _in_options(options: Any, table: str) -> Iterator[Any]:
    for key, text in options.items():
        if key.lower() == _CONDITION:
            yield _filtered(_table(table), _expression_string(text))


def _expression_string(text: str) -> Any:
    expression = protos.expressions.Expression()
    expression.expression_string.expression = text
    return expression


def _of_merge(message: Any, rows: Any) -> Iterator[Any]:
    actions = [
        [each.merge_action for each in some]
        for some in (
            message.match_actions,
            message.not_matched_actions,
            message.not_matched_by_source_actions,
        )
    ]
    target = _table(message.target_table_name)
    yield from _merged(target, message.source_table_plan, message.merge_condition, actions, rows)


def _of_delta(message: Any, rows: Any) -> Iterator[Any]:
    """Yield the queries to read for a write by one of Delta's own commands.

    Delta's messages are of another protobuf pool than Spark's, so they are converted.
    """
    kind = delta.kind_of(message)
    of = getattr(message, kind)
    if kind == "merge_into_table":
        actions = [of.matched_actions, of.not_matched_actions, of.not_matched_by_source_actions]
        yield from _merged(_relation(of.target), _relation(of.source), of.condition, actions, rows)
    elif kind in ("update_table", "delete_from_table"):
        changed = _relation(of.target)
        if of.HasField("condition"):
            changed = _filtered(changed, of.condition)
        values = [each.value for each in of.assignments] if kind == "update_table" else []
        yield _projected(changed, values) if values else changed
    elif kind == "optimize_table":
        for text in of.partition_filters:
            yield _filtered(_table(of.table.table_or_view_name), _expression_string(text))


def _merged(
    target: Any,
    given: Any,
    condition: Any,
    actions: Sequence[Iterable[Any]],
    rows: Any,
) -> Iterator[Any]:
    """Yield the queries to read for a MERGE.

    ``actions``: three lists, for matched rows, for source rows and for target rows without a match.
    ``rows``: the relation in place of the source ``given``; None: the source stays.
    """
    source = _relation(given) if rows is None else rows
    joined = _Relation()
    joined.join.left.CopyFrom(target)
    joined.join.right.CopyFrom(source)
    joined.join.join_condition.CopyFrom(_expression(condition))
    joined.join.join_type = _INNER
    yield joined
    for relation, some in zip((joined, source, target), actions, strict=True):
        if values := list(_computed(some)):
            yield _projected(relation, values)


def _relation(message: Any) -> Any:
    return wire.parsed(_Relation, message.SerializeToString())


def _expression(message: Any) -> Any:
    return wire.parsed(protos.expressions.Expression, message.SerializeToString())


def _projected(relation: Any, values: Iterable[Any]) -> Any:
    projected = _Relation()
    projected.project.input.CopyFrom(relation)
    for value in values:
        projected.project.expressions.add().CopyFrom(_expression(value))
    return projected


def empty_rows(columns: ColumnTypes) -> Any:
    """Return a relation with these columns and no rows."""
    made = _Relation()
    made.local_relation.schema = ", ".join(f"{quote_name(name)} {kind}" for name, kind in columns)
    return made


def _computed(actions: Iterable[Any]) -> Iterator[Any]:
    for action in actions:
        if action.HasField("condition"):
            yield action.condition
        yield from (each.value for each in _assignments(action))


def _assignments(action: Any) -> Iterable[Any]:
    """Return the assignments of a MERGE's action, in Spark's own form or in Delta's."""
    if "assignments" in action.DESCRIPTOR.fields_by_name:
        return list(action.assignments)
    return [*action.update_action.assignments, *action.insert_action.assignments]


_CONDITIONS: Final[dict[str, Callable[[Any, Any], Iterator[Any]]]] = {
    "write_operation": _of_save,
    "write_operation_v2": _of_write_to,
    "merge_into_table_command": _of_merge,
}


def _table(name: str) -> Any:
    relation = _Relation()
    relation.read.named_table.unparsed_identifier = name
    return relation


def _filtered(relation: Any, condition: Any) -> Any:
    filtered = _Relation()
    filtered.filter.input.CopyFrom(relation)
    filtered.filter.condition.CopyFrom(_expression(condition))
    return filtered


def _root(relation: Any) -> bytes:
    plan = protos.base.Plan()
    plan.root.CopyFrom(relation)
    _leave_rows_out(plan.root)
    return bytes(plan.SerializeToString())


def _leave_rows_out(relation: Any) -> None:
    stack = [relation]
    while stack:
        message = stack.pop()
        if message.DESCRIPTOR is _Relation.DESCRIPTOR and message.HasField("local_relation"):
            _empty(message.local_relation)
        stack.extend(inside(message))


def _empty(local: Any) -> None:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(local.data))
    except pa.ArrowInvalid:
        return  # Spark will report it
    sink = io.BytesIO()
    pa.ipc.new_stream(sink, schema).close()
    local.data = sink.getvalue()


def may_hold_texts(kind: str) -> bool:
    """True if values of this type may be or contain texts; ``kind``: its name in Arrow or Spark."""
    return any(text in kind.lower() for text in _TEXTS)


def completes_texts(given: ColumnTypes, target: ColumnTypes, *, by_name: bool) -> bool:
    """True if writing the ``given`` columns into ``target`` may turn a text into a TIMESTAMP.

    Spark completes a text such as '12:30' by today's date (`haproc.classify.tokens`). The parts of
    nested columns are not compared one by one.
    """
    if by_name:
        types = {name.lower(): kind for name, kind in given}
        pairs = [(types.get(name.lower(), ""), kind) for name, kind in target]
    else:
        pairs = [(mine, kind) for (_, mine), (_, kind) in zip(given, target, strict=False)]
    return any(_MOMENT in kind.lower() and may_hold_texts(mine) for mine, kind in pairs)


def defined_by(metadata: Iterable[str]) -> list[str]:
    """Return the keys in columns' metadata that Delta or Spark may read as a definition.

    Definitions are generated columns, identities and defaults. If a table were created from these
    columns, each cluster would compute the values of such columns by itself.
    """
    return sorted(
        key for key in metadata if key.lower().startswith(_DEFINING) or "DEFAULT" in key.upper()
    )
