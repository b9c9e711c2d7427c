"""The parts of a DataFrame that are not in its analyzed tree, but only in the client's plan.

Spark computes some relations while it reads them (``transpose()``, ``summary()``), so that only
their rows are left in the tree. The same holds for some parts of SQL texts in a plan: typed
literals (``DATE 'today'``), computed rows (``VALUES (now())``, ``range(…)``) and names
(``IDENTIFIER(…)``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.plans import delta, expressions
from haproc.classify.plans.parsing import Does, PlanFindings, PlanReading, members
from haproc.classify.plans.relations import COMPUTED_RANGE, USER_CODE, walk
from haproc.classify.tokens import TokenKind
from haproc.reading.findings import SHOWN_MAX
from haproc.reading.moving import computes_rows, moving_in, tokens_of

SHOWN: Final = USER_CODE | members(
    """
    read sql project filter join set_op sort aggregate local_relation range subquery_alias
    repartition repartition_by_expression to_df with_columns_renamed drop with_columns hint
    unpivot to_schema collect_metrics with_watermark deduplicate lateral_join
    with_relations fill_na drop_na replace crosstab unresolved_table_valued_function extension
    limit offset tail sample as_of_join nearest_by_join relation_changes
    """
)
"""Relations that are operators in the analyzed tree, too. All relations that are not listed count
as hidden."""
_RUN_FIRST: Final = members("crosstab")
_PIVOT: Final = protos.relations.Aggregate.GROUP_TYPE_PIVOT
_COMPUTED: Final = "{} is computed while Spark reads it, so that nobody sees from what"
_SESSION: Final = "{} is known to the client's session alone"
_VERSIONS: Final = "each cluster numbers and dates its versions itself"
_WORDS: Final[dict[str, str]] = {
    "show_string": _COMPUTED.format("show()"),
    "html_string": _COMPUTED.format("a table in HTML"),
    "sample_by": _COMPUTED.format("sampleBy()"),
    "parse": _COMPUTED.format("CSV or JSON of a DataFrame's texts"),
    COMPUTED_RANGE: _COMPUTED.format(f"a {COMPUTED_RANGE}"),
    "approx_quantile": _COMPUTED.format("approxQuantile()"),
    "freq_items": _COMPUTED.format("freqItems()"),
    "catalog": "what spark.catalog shows is not the same on every cluster",
    delta.VERSIONS: _VERSIONS,
    "cached_local_relation": _SESSION.format("a DataFrame sent before"),
    "chunked_cached_local_relation": _SESSION.format("a DataFrame sent before"),
    "cached_remote_relation": _SESSION.format("a checkpoint"),
    "ml_relation": _SESSION.format("a model"),
}


def runs_its_input(relation: Any) -> bool:
    """True if Spark already runs the relation's input while it only reads the relation.

    Then an error may show what is in the input: a value that is no number, or a pivot's columns.
    """
    kind = relation.WhichOneof("rel_type")
    if kind == "aggregate":
        aggregate = relation.aggregate
        return bool(aggregate.group_type == _PIVOT and not aggregate.pivot.values)
    return kind not in SHOWN or kind in _RUN_FIRST


def hidden_in(root: Any) -> tuple[str, ...]:
    """Return why a relation could differ between clusters because of parts that no tree shows."""
    found = PlanFindings()
    walk(root, found)
    expressions.take(root, found)
    return hidden(found.reading(Does.QUERIES, Kind.SELECT))


def hidden(reading: PlanReading) -> tuple[str, ...]:
    """Return why a plan could differ between clusters because of parts that no tree shows.

    Its expressions are included.
    """
    return tuple(dict.fromkeys(_hidden(reading)))


def _hidden(reading: PlanReading) -> Iterator[str]:
    for kind in sorted(reading.relations - SHOWN):
        yield _WORDS.get(kind) or _COMPUTED.format(f"{kind}()")
    if reading.options:
        yield "options of what is read may choose one of a table's versions"
    for text in reading.expressions:
        yield from _in_text(text)
    for part in (*reading.sqls, *([] if reading.sql is None else [reading.sql])):
        given = (*part.positional, *(value for _, value in part.named))
        yield from _in_text(part.text, are_literals=all(map(_is_literal, given)))


def _is_literal(argument: Any) -> bool:
    is_expression = (
        argument.DESCRIPTOR.full_name == protos.expressions.Expression.DESCRIPTOR.full_name
    )
    return not is_expression or argument.WhichOneof("expr_type") == "literal"


def _in_text(text: str, *, are_literals: bool = True) -> Iterator[str]:
    """Yield why a SQL text could differ between clusters.

    ``are_literals``: True if all its arguments are literals.
    """
    if moves := moving_in(text):
        yield f"{moves} is read by the clock"
    if "${" in text:
        yield f"{_short(text)} is read with other words in place of ${{…}}"
    if computes_rows(text):
        yield f"rows are computed in {_short(text)}, where nobody sees from what"
    if _computes_names(text, are_literals=are_literals):
        yield f"a name is computed in {_short(text)}, which may be another one on every cluster"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _computes_names(text: str, *, are_literals: bool) -> bool:
    """True if a name in IDENTIFIER(…) is anything else than one string, or one literal argument."""
    plain = {TokenKind.STRING, *([TokenKind.PARAMETER] if are_literals else [])}
    tokens = tokens_of(text)
    return any(
        token.upper == "IDENTIFIER"
        and opening.is_symbol("(")
        and not (given.kind in plain and closing.is_symbol(")"))
        for token, opening, given, closing in zip(
            tokens, tokens[1:], tokens[2:], tokens[3:], strict=False
        )
    )
