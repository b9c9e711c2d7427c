"""Tests of writes that time out before and after their operation is made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haproc.classify.model import WriteConcern
from haproc.failure import RequestError, WriteOutcome
from haproc.route.model import Request, SentSql
from haproc.route.offload import Inline
from haproc.route.service import RingService
from tests.unit.operations import insert

UNDECIDED = SimpleNamespace(write_concern=None)


def service(at: str) -> RingService:
    """Return a service whose writes stop at this stage."""
    ring = object.__new__(RingService)

    async def operation(*_: Any) -> Any:
        if at == "it is made":
            await asyncio.sleep(60)
        return SimpleNamespace(operation=insert("r", "t"), statement=UNDECIDED)

    async def clear(*_: Any) -> None:
        if at == "it waits outside the log":
            await asyncio.sleep(60)

    async def write(request: Request, make: Any, logged: Any) -> None:
        await make()
        await asyncio.sleep(60)

    async def go_on(request: Request, since: int, _: Any) -> Any:
        ring._unmade.add(request.key)  # as the real one does before Spark is asked anything
        return await ring._write(
            cast(Any, SimpleNamespace(request=request, statement=UNDECIDED)), since
        )

    parts = {
        "_replica": SimpleNamespace(writes=SimpleNamespace(since=lambda *_: 0, clear=clear)),
        "_core": SimpleNamespace(me="a"),
        "_texts": Inline(),
        "_only_reads": {},
        "_unmade": set(),
        "_assurance": SimpleNamespace(check=lambda *_: None),
        "_concerns": SimpleNamespace(of=lambda *_: WriteConcern.ONE),
        "_making": SimpleNamespace(operation=operation),
        "_attempts": SimpleNamespace(write=write, next_id=lambda request: request.id),
        "_found_or_made": go_on,
    }
    for name, part in parts.items():
        setattr(ring, name, part)
    return ring


@pytest.mark.parametrize(
    ("at", "age_s", "outcome"),
    [
        ("it is made", 0.0, WriteOutcome.NOT_SENT),
        ("it is made", 1.0, WriteOutcome.UNKNOWN),  # an earlier attempt may be in the log
        ("it waits outside the log", 0.0, WriteOutcome.NOT_SENT),
        ("it is in the log", 0.0, WriteOutcome.UNKNOWN),
    ],
)
async def test_write_that_times_out_has_an_unknown_outcome_only_if_the_log_may_have_it(
    at: str, age_s: float, outcome: WriteOutcome
) -> None:
    request = Request("r", SentSql("UPDATE t SET a = 1"), "", "u", timeout_s=0.05, age_s=age_s)
    with pytest.raises(RequestError) as raised:
        await service(at)._in_time(request, cast(Any, None))
    assert raised.value.outcome is outcome
