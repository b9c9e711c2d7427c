"""What is run everywhere for a write whose rows are there now: a plan with a hole, and the rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from haproc.engine.placeholder import append_template, plan_with_rows, sql_with_rows
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, Filling, QueryWrite, SpooledRows

logger = logging.getLogger(__name__)

OBSERVED_BYTES_MAX: Final = 64 << 10
"""What observations of a write may have found, a row each, to stand in a record. Chosen."""


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """What a query gave: its ``rows`` where they make one part, else the places of the parts.

    ``table``: the staging table that holds them, too, if there is one. ``observed``: what
    observations of the run that gave the rows found.
    """

    schema: bytes
    count: int
    rows: bytes
    parts: tuple[int, ...]
    size_bytes: int
    table: str = ""
    observed: tuple[bytes, ...] = ()


def filling_of(op: Operation, found: ComputedRows) -> Filling:
    """Return what fills the operation with the rows that were found."""
    match op.write:
        case QueryWrite():
            plan = sql_with_rows(op.write.head, found.schema)
        case ComputedPlan():
            plan = plan_with_rows(op.write.template, found.schema)
        case SpooledRows():
            plan = plan_with_rows(append_template(op.write.table), found.schema)
        case _:
            raise AssertionError("it has no rows to be computed")
    observed = _bounded(found.observed)
    return Filling(plan, found.rows, found.parts, found.size_bytes, observed)


def _bounded(observed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    size_bytes = sum(map(len, observed))
    if size_bytes <= OBSERVED_BYTES_MAX:
        return observed
    logger.warning("what a write's observations found is not told: %d bytes", size_bytes)
    return ()
