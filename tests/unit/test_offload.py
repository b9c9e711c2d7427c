"""Tests of the offload: long texts are processed in another process, short ones in this one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import pytest

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.config.shares import Shares
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.route import messages
from haproc.route.model import Request, SentSql
from haproc.route.offload import Inline, Offload

DEADLINE_S = 30.0
LONG = 1 << 20


@pytest.fixture
async def offload() -> AsyncIterator[Offload]:
    made = Offload(shares=Shares(3, 2), work_max_s=DEADLINE_S)
    yield made
    await made.aclose()


def pid(_: int = 0) -> int:
    return os.getpid()


def end(marker: str) -> int:
    """Kill the process; but only once if ``marker`` is the path of a file to create."""
    if not marker or not Path(marker).exists():
        if marker:
            Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def refuse() -> None:
    raise RefusedError("HAPROC_SYNTAX", "no", "yes")


def fail() -> None:
    raise RequestError(
        FailureKind.REFUSED,
        "no",
        error_class="X",
        hint="h",
        outcome=WriteOutcome.REJECTED,
        offset=7,
    )


async def test_work_on_a_short_text_stays_in_the_process(offload: Offload) -> None:
    assert await offload.work_on_text("ann", 10, pid) == os.getpid()
    assert await Inline().work_on_text("ann", LONG, pid) == os.getpid()


async def test_work_on_a_long_text_gives_the_same_result_in_another_process(
    offload: Offload,
) -> None:
    values = ("INSERT INTO t VALUES (1, 'é')", Context(), Rules.builtin())
    statement = await offload.work_on_text("ann", LONG, classify, *values)
    assert isinstance(statement, Classified) and statement == classify(*values)
    assert await offload.work_on_text("ann", LONG, pid) != os.getpid()


async def test_work_on_a_refused_text_raises_the_same_error(offload: Offload) -> None:
    with pytest.raises(RefusedError) as refused:
        await offload.work_on_text("ann", LONG, refuse)
    assert (refused.value.error_class, refused.value.hint) == ("HAPROC_SYNTAX", "yes")
    with pytest.raises(RequestError) as failed:
        await offload.work_on_text("ann", LONG, fail)
    error = failed.value
    assert (error.kind, error.hint, error.offset) == (FailureKind.REFUSED, "h", 7)
    assert (error.outcome, str(error)) == (WriteOutcome.REJECTED, "no")


async def test_work_whose_worker_dies_is_tried_once_more(
    offload: Offload, tmp_path: object
) -> None:
    first = await offload.work_on_text("ann", LONG, pid)
    second = await offload.work_on_text("ann", LONG, end, f"{tmp_path}/once")
    assert second not in (first, os.getpid())


async def test_work_on_a_text_that_kills_workers_is_refused(offload: Offload) -> None:
    with pytest.raises(RequestError) as caught:
        await offload.work_on_text("ann", LONG, end, "")
    assert caught.value.error_class == "HAPROC_STATEMENT_TOO_COMPLEX"
    assert caught.value.kind is FailureKind.REFUSED
    assert await offload.work_on_text("ann", LONG, pid) != os.getpid()


async def test_work_on_a_text_that_takes_too_long_is_refused() -> None:
    offload = Offload(work_max_s=0.2)
    with pytest.raises(RequestError) as caught:
        await offload.work_on_text("ann", LONG, time.sleep, 60)
    assert caught.value.error_class == "HAPROC_STATEMENT_TOO_COMPLEX"
    await offload.aclose()


async def test_work_beyond_the_shares_is_refused_at_once(offload: Offload) -> None:
    waiting = [
        asyncio.ensure_future(offload.work_on_text("ann", LONG, time.sleep, 0.5)) for _ in range(2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="one user alone"):
        await offload.work_on_text("ann", LONG, pid)
    waiting.append(asyncio.ensure_future(offload.work_on_text("bob", LONG, time.sleep, 0.0)))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="all together") as caught:
        await offload.work_on_text("eve", LONG, pid)
    assert caught.value.error_class == "HAPROC_BUSY"
    await asyncio.gather(*waiting)
    assert await offload.work_on_text("ann", LONG, pid) != os.getpid()


async def test_work_of_several_users_runs_in_turns() -> None:
    offload = Offload(short_max=0)
    order: list[str] = []

    async def ask(user: str) -> None:
        await offload.work_on_text(user, 1, pid)
        order.append(user)

    await asyncio.gather(*(ask(user) for user in ("ann", "ann", "ann", "ann", "bob")))
    assert order.index("bob") < 3
    await offload.aclose()


async def test_aclose_ends_the_waiting_work_and_the_workers() -> None:
    offload = Offload()
    worker = await offload.work_on_text("ann", LONG, pid)
    waiting = [
        asyncio.ensure_future(offload.work_on_text("ann", LONG, time.sleep, 60)) for _ in range(2)
    ]
    await asyncio.sleep(0)  # one is on its way to the worker
    async with asyncio.timeout(DEADLINE_S):
        await offload.aclose()
    for task in waiting:
        with pytest.raises(RequestError):
            await asyncio.wait_for(task, DEADLINE_S)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


async def test_answer_that_cannot_be_read_is_not_left_for_the_next_request(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, reads = messages._read_piece, list[int]()

    def read(stream: IO[bytes]) -> tuple[bytes, bytearray]:
        reads.append(1)
        if len(reads) == 1:
            raise MemoryError
        return original(stream)

    monkeypatch.setattr(messages, "_read_piece", read)
    with pytest.raises(MemoryError):
        await offload.work_on_text("ann", LONG, len, "first")
    assert await offload.work_on_text("bob", LONG, len, "the second") == 10


def test_request_can_be_pickled() -> None:
    request = Request("r", SentSql("SELECT 1"), "f")
    assert pickle.loads(pickle.dumps(request)) == request
