"""Why a plan that writes would not come out the same on every cluster.

A plan is never changed: what reads the clock, too, has its rows computed once. Functions are judged
by the same table as those of SQL texts, and the texts in a plan by the same examination; what SQL
has clauses for, a plan has relations for, and those stand in a table here. A relation that stands
in none counts as different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.names import path_of
from haproc.classify.plans import delta, expressions
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.expressions import FRAME_OF_ROWS
from haproc.classify.plans.members import members
from haproc.classify.plans.reading import Does, Found, PlanReading
from haproc.classify.plans.relations import DROPS_SOME, FILES, USER_CODE, walk
from haproc.pin.examine import DOUBTS, Doubt, Finding
from haproc.pin.functions import Nature, nature
from haproc.pin.literals import string_literal
from haproc.pin.plan_parts import input_of, with_input
from haproc.pin.queries import Differing, text_findings
from haproc.pin.reasons import REASONS
from haproc.pin.scan import BUILTIN

SAME: Final = members(
    """
    read sql project filter join set_op sort aggregate local_relation range subquery_alias
    repartition repartition_by_expression to_df with_columns_renamed drop with_columns hint
    unpivot to_schema collect_metrics parse with_watermark deduplicate lateral_join
    with_relations fill_na drop_na replace crosstab unresolved_table_valued_function extension
    """
)
"""Relations that come out the same wherever what stands in and below them does."""
_ORDER: Final = "{} depends on the order of rows or on how ties fall"
_FLOATS: Final = "{} computes in floating point, where the order of rows shows"
_SESSION: Final = "{} is known to the client's session alone"
DIFFERENT: Final[dict[str, Finding]] = {
    **{
        kind: Finding(f"{name} takes any rows unless their order is total", Doubt.LIMIT)
        for kind, name in (("limit", "limit()"), ("offset", "offset()"))
    },
    **{
        kind: Finding(_ORDER.format(name))
        for kind, name in (
            ("tail", "tail()"),
            ("show_string", "show()"),
            ("html_string", "a table in HTML"),
            ("as_of_join", "an as-of join"),
            ("nearest_by_join", "a nearest-by join"),
            ("transpose", "transpose()"),
            (DROPS_SOME, "dropDuplicates() by some of the columns"),
        )
    },
    FRAME_OF_ROWS: Finding(
        "a window of ROWS depends on how ties in its order fall", Doubt.ANALYSIS
    ),
    **{
        kind: Finding(f"{name} depends on how each cluster has laid out its files and partitions")
        for kind, name in (("sample", "sample()"), ("sample_by", "sampleBy()"))
    },
    **{
        kind: Finding(_FLOATS.format(f"{kind}()"))
        for kind in ("summary", "describe", "cov", "corr")
    },
    **{
        kind: Finding(f"{name} approximates, depending on the order of rows")
        for kind, name in (("approx_quantile", "approxQuantile()"), ("freq_items", "freqItems()"))
    },
    "catalog": Finding("what spark.catalog tells is not the same on every cluster"),
    "relation_changes": Finding("each cluster numbers and dates its versions itself"),
    delta.VERSIONS: Finding("each cluster numbers and dates its versions itself"),
    FILES: Finding("files belong to no table of the ring"),
    **{
        kind: Finding(_SESSION.format(name))
        for kind, name in (
            ("cached_local_relation", "a DataFrame sent before"),
            ("chunked_cached_local_relation", "a DataFrame sent before"),
            ("cached_remote_relation", "a checkpoint"),
            ("ml_relation", "a model"),
        )
    },
    **{
        kind: Finding("Python functions run code that HAProc cannot look into")
        for kind in USER_CODE
    },
}
"""Relations, and what stands for some of their forms, that may not; and why."""
OPERATORS: Final = members("+ - * / % & | ^ ~ ! = == <=> < <= > >= <> != ||")


@dataclass(frozen=True, slots=True)
class PlanReasons:
    """What could differ of the rows that a plan takes, and of all that stands beside those.

    Rows can be computed once instead; of what stands beside them there are no rows.
    """

    input: Differing = Differing()  # noqa: RUF009 - it is frozen
    beside: Differing = Differing()  # noqa: RUF009


def plan_reasons(plan: Any) -> PlanReasons:
    """Return why a plan that writes, opened and read before, may differ; raises RefusedError.

    Where it is a SQL text, that is examined as any other (`haproc.pin.determinism`): here are the
    DataFrames that came with it.
    """
    source = input_of(plan)
    if source is None:
        reading = read_plan(plan)
        if reading.does is Does.RUNS_SQL:
            frames = plan.command.sql_command.input.with_relations.references
            return PlanReasons(input=_of_relations(frames))
        return PlanReasons(beside=_differing(reading))
    nothing = protos.relations.Relation()
    nothing.local_relation.SetInParent()
    return PlanReasons(
        input=_of_relations([source]), beside=_differing(read_plan(with_input(plan, nothing)))
    )


def _of_relations(relations: Iterable[Any]) -> Differing:
    taken = Found()
    for each in relations:
        walk(each, taken)
        expressions.take(each, taken)
    return _differing(taken.reading(Does.QUERIES, Kind.SELECT))


def _differing(reading: PlanReading) -> Differing:
    unknown: set[str] = set()
    findings = list(_findings(reading, unknown))
    return Differing.of(findings, frozenset(unknown))


def _findings(reading: PlanReading, unknown: set[str]) -> Iterator[Finding]:
    for kind in sorted(reading.relations - SAME):
        yield DIFFERENT.get(kind) or Finding(f"{kind} is not known to be the same everywhere")
    if reading.user_code:
        yield DIFFERENT["map_partitions"]
    if reading.options:
        yield Finding("options of what is read may choose one of a table's versions")
    for path in sorted(filter(None, map(path_of, reading.names))):
        yield Finding(f"the files at {path} belong to no table of the ring")
    for text in sorted(reading.moments):
        yield Finding(f"Spark may read {string_literal(text)} by the clock", Doubt.ANALYSIS)
    for name in sorted(reading.functions - OPERATORS):
        yield from _of_function(name, unknown)
    parts = [*reading.sqls] if reading.sql is None else [*reading.sqls, reading.sql]
    for text in (*(part.text for part in parts), *(f"SELECT {e}" for e in reading.expressions)):
        yield from _of_text(text, unknown)


def _of_function(name: str, unknown: set[str]) -> Iterator[Finding]:
    *space, last = name.split(".")
    of = nature(last) if not space or space in BUILTIN else Nature.UNKNOWN
    if of is Nature.UNKNOWN:
        unknown.add(last)
    if of is not Nature.DETERMINISTIC:
        yield Finding(REASONS[of].format(f"{name}()"), DOUBTS.get(of, Doubt.CERTAIN))


def _of_text(text: str, unknown: set[str]) -> list[Finding]:
    findings, functions = text_findings(text)
    unknown |= functions
    return findings
