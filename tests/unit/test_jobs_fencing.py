"""Tests of fenced attempts: a replaced attempt writes nothing, not even a write admitted before.

Two HAProcs with a log, complete except for Spark; one of them is stopped between admitting a write
and appending it, like a frozen process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haproc.config.model import Reads
from haproc.failure import ErrorClass, RequestError
from haproc.jobs.book import AttemptAuthorization, fence_name, new_token
from haproc.jobs.model import JobAttempt
from haproc.replicate.records.operation import Operation, from_record
from haproc.route.model import Answer, Request, SentPlan, SentRows, SentSql
from tests.unit.door_rig import until
from tests.unit.job_rig import Haproc, Ring
from tests.unit.test_reads_between_doors import HAProc, Pair, pair

INSERT = "INSERT INTO t VALUES (7)"


@dataclass
class Stopped:
    """A HAProc that stops before it appends the next operation, until it goes on."""

    haproc: HAProc
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        log: Any = self.haproc.core.log
        append = log.append

        async def late(records: Any) -> Any:
            if not records[0].kind.startswith("operation"):
                return await append(records)
            log.append = append
            self.reached.set()
            await self.go_on.wait()
            return await append(records)

        log.append = late


@dataclass
class Fenced:
    """A job, and the two HAProcs that its attempts write through."""

    both: Pair
    jobs: Haproc
    job: int
    attempts: list[str] = field(default_factory=list)

    async def attempt(self) -> AttemptAuthorization:
        """Start the next attempt as a HAProc does: first replace the old one, then fence it."""
        name = self.jobs.book.new_name()
        token, digest = new_token(self.job, name)
        replaces = self.attempts[-1] if self.attempts else ""
        number = len(self.attempts) + 1
        made = JobAttempt(number, name, "b", "b1", digest, replaces, 0, 0)
        await self.jobs.book.store_event(self.job, made)
        if self.attempts:
            await self.both.b.replica.writes.fence(fence_name(self.job))
        self.attempts.append(name)
        return self.jobs.tokens.authorization_of(token)

    async def write(
        self,
        haproc: HAProc,
        authorization: AttemptAuthorization,
        request_id: str,
        sql: str = INSERT,
    ) -> Answer:
        request = Request(
            request_id, SentSql(sql), "f", "ann", authorization=authorization, timeout_s=10
        )
        return await haproc.service.execute(request)

    async def applied(self) -> list[int]:
        """Return each cluster's number of statements run, once both have read the whole log."""
        end = await self.both.a.core.log.end()
        for each in (self.both.a, self.both.b):
            await each.replica.applied(end)
        return [len(each.spark.applied) for each in (self.both.a, self.both.b)]


@asynccontextmanager
async def fenced(tmp_path: Path) -> AsyncIterator[Fenced]:
    jobs = Haproc(Ring(tmp_path), "b")
    async with pair(tmp_path, Reads()) as both:
        job = await jobs.submit("pass", conf={"haproc.restart": 9})
        yield Fenced(both, jobs, job)


async def test_write_admitted_before_the_fence_and_appended_behind_it_is_applied_nowhere(
    tmp_path: Path,
) -> None:
    async with fenced(tmp_path) as ring:
        a, first = ring.both.a, await ring.attempt()
        stopped = Stopped(a)
        writing = asyncio.ensure_future(ring.write(a, first, "r"))
        await stopped.reached.wait()
        second = await ring.attempt()
        assert await ring.applied() == [0, 0]  # what the new attempt goes on from
        stopped.go_on.set()
        with pytest.raises(RequestError) as caught:
            await writing
        assert caught.value.error_class == ErrorClass.JOB_FENCED
        entries = [from_record(entry.record) for entry in await a.core.log.read(0)]
        assert [each.id for each in entries if isinstance(each, Operation)] == ["r"]
        assert await ring.applied() == [0, 0]
        answer = await ring.write(ring.both.b, second, "r")  # the same id: that one never counted
        assert answer.affected_rows == 1
        assert await ring.applied() == [1, 1]


async def test_write_before_the_fence_counts_and_is_not_applied_again(tmp_path: Path) -> None:
    async with fenced(tmp_path) as ring:
        first = await ring.attempt()
        await ring.write(ring.both.a, first, "r")
        second = await ring.attempt()
        await ring.write(ring.both.b, second, "r")
        await ring.write(ring.both.b, second, "s")
        assert await ring.applied() == [2, 2]


async def test_operation_of_every_form_of_write_rests_on_the_fence_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haproc.engine.statement import SqlText
    from haproc.route.making import Made, Making

    async def made(self: Making, understood: Any) -> Made:
        operation = Operation("r", "asynchronous", "insert", "a", "f", SqlText("w"))  # type: ignore[arg-type]
        return Made(operation, understood.statement)

    monkeypatch.setattr(Making, "_operation", made)
    async with fenced(tmp_path) as ring:
        authorization = await ring.attempt()
        making = ring.both.a.service._making
        decided = SimpleNamespace(rules=())
        for sent in (SentSql(INSERT), SentRows("t", b""), SentPlan(b"")):
            understood: Any = type(
                "Understood",
                (),
                {
                    "request": Request("r", sent, "f", authorization=authorization),
                    "statement": decided,
                },
            )
            operation = (await making.operation(understood)).operation
            assert operation.rests_on == {fence_name(ring.job)}
            assert operation.analyzed_to is not None


async def test_new_attempt_does_not_get_the_answer_of_the_attempt_that_it_replaced(
    tmp_path: Path,
) -> None:
    async with fenced(tmp_path) as ring:
        a, first = ring.both.a, await ring.attempt()
        stopped = Stopped(a)
        registry = a.registry
        from haproc.statements.request import StatementRequest

        def request_of(authorization: AttemptAuthorization) -> StatementRequest:
            request = Request(
                "r", SentSql(INSERT), "f", "ann", authorization=authorization, timeout_s=10
            )
            return StatementRequest(request)

        old = await registry.submit(request_of(first))
        await stopped.reached.wait()
        second = await ring.attempt()
        again = asyncio.ensure_future(registry.submit(request_of(second)))
        await asyncio.sleep(0)
        stopped.go_on.set()
        new = await again
        await until(lambda: old.finished and new.finished)
        assert old.error is not None and old.error.error_class == ErrorClass.JOB_FENCED
        assert new.error is None
        assert await ring.applied() == [1, 1]


async def test_write_of_a_job_after_other_records_is_applied(tmp_path: Path) -> None:
    async with fenced(tmp_path) as ring:
        first = await ring.attempt()
        for number in range(5):
            await ring.write(ring.both.a, first, f"r{number}")
            await ring.both.ask(ring.both.b, f"INSERT INTO u VALUES ({number})")
        assert await ring.applied() == [10, 10]
