"""Finds the class of a plan that was read: completes names, classifies SQL texts, applies rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from haproc.classify.bounds import Bounds
from haproc.classify.classifier import Unparsed, classify, decided
from haproc.classify.model import Classified, Kind, OperationClass, Recognised, RefusedError
from haproc.classify.names import (
    Context,
    may_be_temporary,
    path_of,
    qualified,
    refuse_own,
    refuse_own_schema,
    target,
)
from haproc.classify.plans import parsing
from haproc.classify.plans.parsing import Does, PlanReading, SqlPart
from haproc.classify.rules import Rules
from haproc.failure import ErrorClass

_BOUNDS = Bounds()
_NAMESPACES = frozenset({Kind.CREATE_NAMESPACE, Kind.DROP_NAMESPACE})
_NOT_WRITING = frozenset({OperationClass.QUERY, OperationClass.SESSION})
_CLASSES = {
    Does.QUERIES: frozenset({OperationClass.QUERY}),
    Does.CHANGES_SESSION: frozenset({OperationClass.SESSION}),
    Does.HOLDS: frozenset({OperationClass.SESSION}),
    Does.WRITES: frozenset(OperationClass) - _NOT_WRITING,
}


def classify_plan(
    reading: PlanReading,
    context: Context,
    rules: Rules,
    bounds: Bounds = _BOUNDS,
    override: OperationClass | None = None,
    parsed: Mapping[str, Recognised] | None = None,
    *,
    there: bool = False,
) -> Classified:
    """Return a plan as a statement with its kind, tables and class; raises RefusedError.

    - ``parsed``: by text, what Spark's parser found for the texts that `unparsed` yields;
    - ``there``: True if the table that the plan writes exists already; then some saves are plain
      INSERTs.

    If the plan is a SQL text (RUNS_SQL), the result has the class of the text, and the text as
    ``sql``; otherwise ``sql`` is "".
    """
    if reading.user_code and context.rights.bounded:
        raise _code_forbidden(context.rights.tables)
    known = parsed or {}
    for part in _parts(reading):
        found = _classified(part, known, context, rules, bounds)
        if isinstance(found, Unparsed) or found.operation_class is not OperationClass.QUERY:
            raise parsing.refused_nesting(f"the statement {part.text[:60]!r}")
    read, text = _read(reading, context, rules), text_of(reading)
    if reading.sql is None:
        return _decided(reading, read, text, context, rules, override, there)
    decided(read, text, context, rules)
    stated = _classified(reading.sql, known, context, rules, bounds, override)
    assert isinstance(stated, Classified), "it was parsed"
    tables_known = stated.tables_known and read.tables_known
    return replace(stated, reads=read.reads, tables_known=tables_known)


def _code_forbidden(tables: Sequence[str]) -> RefusedError:
    """Return the error for code of a user who may touch only some tables.

    Such code may run already while Spark reads the plan, and could read the files of any table.
    """
    return RefusedError(
        ErrorClass.FORBIDDEN,
        "the DataFrame holds the program's own functions, and this user may touch "
        f"{', '.join(tables)} only",
        "write it with Spark's own functions, or have an operator give the user all tables",
    )


def _classified(
    part: SqlPart,
    parsed: Mapping[str, Recognised],
    context: Context,
    rules: Rules,
    bounds: Bounds,
    override: OperationClass | None = None,
) -> Classified | Unparsed:
    found = classify(part.text, context, rules, override, bounds)
    if isinstance(found, Unparsed) and found.sql in parsed:
        return decided(parsed[found.sql], found.sql, context, rules, override)
    return found


def unparsed(reading: PlanReading, context: Context, bounds: Bounds = _BOUNDS) -> Iterator[str]:
    """Yield those SQL texts of a plan whose kind only Spark's parser can find.

    Raises RefusedError.
    """
    for part in [*_parts(reading), *([] if reading.sql is None else [reading.sql])]:
        found = classify(part.text, context, Rules.builtin(), bounds=bounds)
        if isinstance(found, Unparsed):
            yield found.sql


def text_of(reading: PlanReading) -> str:
    """Return the text of a plan with which a rule's ``matches`` is compared."""
    return "\n".join(part.text for part in _parts(reading))


def _parts(reading: PlanReading) -> list[SqlPart]:
    expressions = (SqlPart(f"SELECT {each}") for each in reading.expressions)
    return [*reading.sqls, *expressions]


def _read(reading: PlanReading, context: Context, rules: Rules) -> Recognised:
    """Return the tables that a plan itself reads, in the form of one query.

    Raises RefusedError if the plan names files that are not allowed.
    """
    for name in reading.names:
        refuse_own(name, context)
    found = {path_of(name) for name in reading.names} - {""}
    rules.paths.check(reading.paths | found)
    return Recognised(
        Kind.SELECT,
        reads=frozenset(qualified(name, context) for name in reading.names),
        tables_known=reading.names_known and not found,
    )


def _decided(
    reading: PlanReading,
    read: Recognised,
    text: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None,
    there: bool,
) -> Classified:
    kind = reading.kind_if_there if there and reading.kind_if_there else reading.kind
    recognised = replace(read, kind=kind)
    if reading.does is Does.WRITES:
        recognised = _writing(recognised, reading, context)
    classified = decided(recognised, text, context, rules, override, sql="")
    check_class(classified, reading.does)
    return classified


def check_class(classified: Classified, does: Does) -> None:
    """Raise RefusedError if a rule gives a plan a class that does not fit what the plan does."""
    if classified.operation_class not in _CLASSES[does]:
        raise RefusedError(
            ErrorClass.REFUSED_BY_RULE,
            f"{classified.rule} makes the plan {classified.operation_class.value}, which a plan "
            f"that {does.value.replace('_', ' ')} can't be",
            "write it as SQL, or have the rule changed",
        )


def _writing(recognised: Recognised, reading: PlanReading, context: Context) -> Recognised:
    """Return a write with the table that it changes; if it changes a schema, tables are unknown."""
    if recognised.kind in _NAMESPACES:
        refuse_own_schema(reading.target[-1:])
        return replace(recognised, tables_known=False)
    table = frozenset({target(reading.target, context)})
    is_bare = may_be_temporary(reading.target) and recognised.kind is not Kind.CREATE_TABLE
    return replace(recognised, writes=table, bare=table if is_bare else frozenset())
