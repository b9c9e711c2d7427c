"""AnalyzePlan: what it would have Spark analyse, as plans that are found fit to run first.

Analysing a plan runs what writes by a relation, so none may (`read_analysis`); and its tables have
to be as fresh as if it were run.
"""

from __future__ import annotations

from typing import Any

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.plans.analysis import EXPLAINED, read_analysis
from haproc.classify.plans.created import as_tables
from haproc.classify.plans.parsing import parse
from haproc.failure import ErrorClass

_Plan = protos.base.Plan


def plans_of(request: bytes) -> tuple[bytes, list[bytes]]:
    """Return an AnalyzePlanRequest as it may be sent on, and the plans in it.

    RefusedError if any does more than read.
    """
    asked = parse(protos.base.AnalyzePlanRequest, request)
    try:
        read_analysis(asked)
    except RefusedError as error:
        if error.error_class != ErrorClass.NESTED_WRITE or not as_tables(asked):
            raise
        read_analysis(asked)
        request = bytes(asked.SerializeToString(deterministic=True))
    kind = asked.WhichOneof("analyze")
    places = EXPLAINED.get(kind, ())
    return request, [_plan(getattr(getattr(asked, kind), each)) for each in places]


def _plan(explained: Any) -> bytes:
    if isinstance(explained, _Plan):
        return bytes(explained.SerializeToString())
    plan = _Plan()
    plan.root.CopyFrom(explained)
    return bytes(plan.SerializeToString())
