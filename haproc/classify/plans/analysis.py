"""Requests beside plans: AnalyzePlan, which explains some.

To explain a plan Spark has to analyse it, and what writes by a relation writes while it is
analysed. So all that is to be explained must only read, whatever is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from haproc.classify.model import Kind
from haproc.classify.plans import catalog, expressions, refusals
from haproc.classify.plans.members import members
from haproc.classify.plans.parsing import opened
from haproc.classify.plans.reading import Does, PlanFindings, PlanReading
from haproc.classify.plans.relations import walk

EXPLAINED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(members("schema explain tree_string is_local is_streaming"), ("plan",)),
    **dict.fromkeys(members("input_files semantic_hash"), ("plan",)),
    "same_semantics": ("target_plan", "other_plan"),
    "persist": ("relation",),
    "unpersist": ("relation",),
    "get_storage_level": ("relation",),
}
"""What is asked about plans or relations, and where these stand."""
PLAIN: Final = members("spark_version ddl_parse json_to_ddl")
"""What is asked about no plan."""


def read_analysis(request: Any) -> PlanReading:
    """Return what an AnalyzePlanRequest, parsed by `parsing.parse`, reads.

    Always QUERIES: RefusedError if any of its plans could do more. Its kind is EXPLAIN, or CACHE
    for the hints that keep rows in memory (persist, unpersist).
    """
    asked = request.WhichOneof("analyze")
    found = PlanFindings()
    if asked in PLAIN:
        return found.reading(Does.QUERIES, Kind.EXPLAIN)
    if asked not in EXPLAINED:
        raise refusals.unknown(f"the question {asked}")
    message = getattr(request, asked)
    for place in EXPLAINED[asked]:
        explained = getattr(message, place)
        _take(explained if place == "relation" else _root(explained, asked), found)
    kind = Kind.CACHE if asked in ("persist", "unpersist") else Kind.EXPLAIN
    return found.reading(Does.QUERIES, kind)


def _root(plan: Any, asked: str) -> Any:
    plan = opened(plan)
    kind = plan.WhichOneof("op_type")
    if kind == "command":
        raise refusals.nested(f"a command whose {asked} is asked for")
    if kind != "root":
        raise refusals.unknown("neither a query nor a command")
    return plan.root


def _take(relation: Any, found: PlanFindings) -> None:
    if relation.WhichOneof("rel_type") == "catalog":
        catalog.read_nested(relation.catalog, found)
        return
    walk(relation, found)
    expressions.check(relation, found)
