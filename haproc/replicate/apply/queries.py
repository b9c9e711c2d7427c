"""The query that gives an operation's rows: what it is, where it can run, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from haproc.classify.model import RefusedError
from haproc.engine.interface import Settings
from haproc.engine.placeholder import empty_query, plan_of_query, rests_on_handles
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.failure import ErrorClass
from haproc.replicate.log_state.failure_votes import taken_back
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, QueryWrite, SpooledRows

T = TypeVar("T")


def query_of(op: Operation) -> Statement:
    """Return the query that gives an operation's rows."""
    if isinstance(op.write, ComputedPlan):
        return SparkPlan(plan_of_query(op.write.query))
    if isinstance(op.write, SpooledRows):
        return SparkPlan(empty_query(op.write.schema))
    assert isinstance(op.write, QueryWrite)
    return SqlText(op.write.query)


def settings_of_query(op: Operation) -> Settings:
    """Return the settings under which that query runs: also those of its client's session alone."""
    if not isinstance(op.write, QueryWrite | ComputedPlan):
        return op.settings
    confs = {**dict(op.settings.confs), **dict(op.write.confs)}
    return replace(op.settings, confs=tuple(sorted(confs.items())))


def of_one_session(op: Operation) -> bool:
    """Whether the query can run in the client's own session only, as its origin has it.

    Likewise rows that came with the request.
    """
    if isinstance(op.write, SpooledRows):
        return True
    if isinstance(op.write, ComputedPlan):
        return op.write.session is not None and rests_on_handles(op.write.query)
    return isinstance(op.write, QueryWrite) and op.write.of_session and op.write.session is None


async def in_budget(op: Operation, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work gives; raises RefusedError if it takes longer than the operation may."""
    budget = asyncio.timeout(op.apply_budget_s)
    try:
        async with budget:
            return await work
    except TimeoutError as error:
        if not budget.expired():
            raise
        why = taken_back(f"its time budget ({op.apply_budget_s:g} s)")
        raise RefusedError(ErrorClass.REVOKED, why) from error
