"""Jobs in a ring of several HAProcs: their runs, their answers, and fenced attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from dmq import LogUnavailableError
from haproc.config.jobs import Jobs
from haproc.failure import ErrorClass, RequestError
from haproc.jobs import runner
from haproc.jobs.book import new_token
from haproc.jobs.model import JobAttempt, Kill
from haproc.jobs.records import LOGS
from tests.unit.door_rig import until
from tests.unit.job_rig import Haproc, Ring

PRINTS_ATTEMPT = "import os; print('attempt', os.environ['HAPROC_JOB_ATTEMPT'], flush=True)\n"
SAYS_TOKEN = "import os, time; print(os.environ['HACLIENT_TOKEN'], flush=True); time.sleep(100)"
WAITS = PRINTS_ATTEMPT + "import time; time.sleep(100)"


@pytest.fixture
async def ring(tmp_path: Path) -> AsyncIterator[Ring]:
    """A ring whose HAProcs the test stops itself."""
    made = Ring(tmp_path)
    yield made


@pytest.fixture
async def three(ring: Ring) -> AsyncIterator[list[Haproc]]:
    found = [await ring.haproc(name) for name in "abc"]
    yield found
    for each in found:
        await each.stop()


async def test_job_runs_and_every_haproc_answers_for_it(three: list[Haproc]) -> None:
    a, b, c = three
    job = await a.submit(
        PRINTS_ATTEMPT + "import sys; print(sys.argv[1:])", args=["x", "y"], name="n"
    )
    found = await b.ended(job)
    assert (found["state"], found["name"], found["owner"]) == ("success", "n", "ann")
    assert await c.log(job) == ["attempt 1", "['x', 'y']"] == found["log"]
    assert (await c.service.state("ann", job)) == {"id": job, "state": "success"}
    listed = await c.service.listed("ann", 0, 10)
    assert listed["total"] == 1


async def test_jobs_submitted_to_different_haprocs_have_different_ids(three: list[Haproc]) -> None:
    submissions = [each.submit("pass") for _ in range(5) for each in three]
    assert len(set(await asyncio.gather(*submissions))) == 15


async def test_same_request_is_the_same_job_also_at_once_and_on_other_haprocs(
    three: list[Haproc],
) -> None:
    submissions = [each.submit(PRINTS_ATTEMPT, requestId="r1") for _ in range(3) for each in three]
    [job] = set(await asyncio.gather(*submissions))
    await three[0].ended(job)
    assert await three[1].submit(PRINTS_ATTEMPT, requestId="r1") == job
    assert await three[1].submit(PRINTS_ATTEMPT, "bob", requestId="r1") != job
    assert await three[2].log(job) == ["attempt 1"]
    with pytest.raises(RequestError) as caught:
        await three[0].submit("pass", requestId="r1")
    assert caught.value.error_class == ErrorClass.REQUEST_ID_REUSED
    kept = [key for key in three[0].ring.keys.kept if key.startswith("jobfile/")]
    assert len(kept) == 2  # one for each user's


async def test_user_sees_and_kills_own_jobs_only(three: list[Haproc]) -> None:
    job = await three[0].submit(WAITS)
    for ask in (
        three[1].service.shown("bob", job),
        three[1].service.state("bob", job),
        three[1].service.log("bob", job, None, 10),
        three[1].service.kill("bob", job),
    ):
        with pytest.raises(RequestError) as caught:
            await ask
        assert caught.value.error_class == ErrorClass.JOB_UNKNOWN
    assert (await three[1].service.listed("bob", 0, 10))["total"] == 0
    await three[1].service.kill("ann", job)
    assert (await three[2].shown(job))["state"] == "killed"


async def test_job_killed_through_another_haproc_ends_at_once(three: list[Haproc]) -> None:
    job = await three[0].submit(WAITS)
    await three[1].until(job, lambda found: found["log"] == ["attempt 1"])
    assert three[0].runner.running == 1
    await three[2].service.kill(None, job)
    await until(lambda: not three[0].runner.running)
    assert (await three[1].shown(job))["state"] == "killed"


async def test_job_whose_haproc_dies_is_restarted_by_exactly_one_other(
    three: list[Haproc],
) -> None:
    a, b, c = three
    job = await a.submit(PRINTS_ATTEMPT + "import time; time.sleep(3)", conf={"haproc.restart": 5})
    await b.until(job, lambda found: found["log"] == ["attempt 1"])
    await a.die()
    found = await b.ended(job)
    assert found["haproc"]["attempts"] == 2 and found["state"] == "success"
    assert found["haproc"]["cluster"] in ("b", "c")
    assert (await c.log(job)) == ["attempt 1", "attempt 2"]


async def test_job_without_restarts_whose_haproc_dies_is_dead(three: list[Haproc]) -> None:
    job = await three[0].submit(WAITS)
    await three[1].until(job, lambda found: found["log"] == ["attempt 1"])
    await three[0].die()
    found = await three[1].ended(job)
    assert (found["state"], found["haproc"]["outcome"]) == ("dead", "lost")


async def test_job_whose_haproc_stops_is_restarted_on_another_or_lost(three: list[Haproc]) -> None:
    once = await three[0].submit(WAITS)
    code = (
        PRINTS_ATTEMPT
        + "import os, time; time.sleep(100 if os.environ['HAPROC_JOB_ATTEMPT'] == '1' else 0)"
    )
    again = await three[0].submit(code, conf={"haproc.restart": 1})
    for job in (once, again):
        await three[1].until(job, lambda found: found["log"] == ["attempt 1"])
    await three[0].stop()
    assert (await three[1].ended(once))["haproc"]["outcome"] == "lost"
    assert (await three[1].ended(again))["state"] == "success"


async def test_program_that_fails_is_restarted_as_often_as_requested(three: list[Haproc]) -> None:
    job = await three[0].submit(PRINTS_ATTEMPT + "raise SystemExit(4)", conf={"haproc.restart": 2})
    found = await three[1].ended(job)
    assert (found["state"], found["haproc"]["exit_code"]) == ("dead", 4)
    assert await three[2].log(job) == ["attempt 1", "attempt 2", "attempt 3"]


async def test_job_whose_log_cannot_be_stored_succeeds_and_the_lost_lines_are_logged(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "LOG_TRIES_MAX", 2)
    monkeypatch.setattr(runner, "AGAIN_S", 0.0)
    a = await ring.haproc("a")
    put = a.store.put

    async def away(key: str, value: bytes) -> None:
        if key.startswith(LOGS):
            raise LogUnavailableError("the store is away")
        await put(key, value)

    monkeypatch.setattr(a.store, "put", away)
    job = await a.submit("print('x\\ny')")
    assert (await a.ended(job))["state"] == "success"
    assert f"job {job}: lines 0 to 1 of its log are lost" in caplog.text
    await a.stop()


async def test_job_that_does_not_succeed_is_fenced_for_good(three: list[Haproc]) -> None:
    well = await three[1].submit("pass")
    assert (await three[1].ended(well))["state"] == "success"
    failed = await three[1].submit("raise SystemExit(4)")
    lost = await three[0].submit(WAITS)
    await three[1].until(lost, lambda found: found["log"] == ["attempt 1"])
    await three[0].die()
    assert (await three[1].ended(lost))["haproc"]["outcome"] == "lost"
    await until(lambda: set(three[0].ring.fenced) == {failed, lost})


async def test_job_whose_haproc_dies_before_the_fence_is_fenced_by_another(
    three: list[Haproc],
) -> None:
    ring = three[0].ring
    ring.fence_fails = {"a"}
    job = await three[0].submit("raise SystemExit(4)")
    assert (await three[1].ended(job))["state"] == "dead"
    assert ring.fenced == []  # the others leave it to the one that ran it, while that is there
    await three[0].die()
    await until(lambda: job in ring.fenced)


async def test_attempt_that_waits_too_long_for_its_cluster_is_replaced_by_another_haprocs(
    three: list[Haproc], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def applies(name: str, offset: int) -> None:
        if name == "b":
            await asyncio.Event().wait()

    monkeypatch.setattr(runner, "APPLIED_WITHIN_S", 0.1)
    three[0].ring.applies = applies
    job = await three[1].submit(PRINTS_ATTEMPT + "raise SystemExit(4)", conf={"haproc.restart": 3})
    await three[1].until(job, lambda found: found["log"][-1:] == ["attempt 1"])
    found = await three[1].ended(job)
    assert (found["state"], found["haproc"]["outcome"]) == ("dead", "lost")


async def test_files_of_a_job_are_where_the_program_looks_for_them(three: list[Haproc]) -> None:
    from haproc.jobs.model import FileRole
    from haproc.jobs.request import Upload

    uploads = [
        Upload(FileRole.PROGRAM, "p.py", b"import m; print(m.x, open('d.txt').read())"),
        Upload(FileRole.MODULE, "m.py", b"x = 7"),
        Upload(FileRole.DATA, "d.txt", b"data"),
    ]
    found = await three[0].service.submit("ann", {}, uploads)
    job = found["id"]
    assert isinstance(job, int)
    assert (await three[1].ended(job))["state"] == "success"
    assert await three[1].log(job) == ["7 data"]
    await until(lambda: not list((three[0].ring.folder / "jobs" / "a").glob("*")))


async def test_jobs_beyond_jobs_max_are_refused_and_those_beyond_running_max_wait(
    tmp_path: Path,
) -> None:
    ring = Ring(tmp_path, Jobs(enabled=True, running_max=1, jobs_max=2))
    a = await ring.haproc("a")
    first, second = await a.submit(WAITS), await a.submit(PRINTS_ATTEMPT)
    with pytest.raises(RequestError) as caught:
        await a.submit("pass")
    assert caught.value.error_class == ErrorClass.BUSY
    await a.until(first, lambda found: found["log"] == ["attempt 1"])
    assert (await a.shown(second))["state"] == "not_started"
    await a.service.kill("ann", first)
    assert (await a.ended(second))["state"] == "success"
    await a.stop()


# -- tokens ------------------------------------------------------------------------------------


async def begun(haproc: Haproc, job: int, replaces: str = "") -> tuple[str, str]:
    name = haproc.book.new_name()
    token, digest = new_token(job, name)
    made = JobAttempt(1, name, "x", "x1", digest, replaces, 0, 0)
    await haproc.book.store_event(job, made)
    return name, token


async def test_token_is_valid_at_every_haproc_until_its_attempt_is_replaced(ring: Ring) -> None:
    a, b = Haproc(ring, "a"), Haproc(ring, "b")
    job = await a.submit("pass", conf={"haproc.restart": 3})
    name, token = await begun(a, job)
    assert await a.tokens.submitter(token) == await b.tokens.submitter(token, "s1") == ("ann", None)
    _, second = await begun(b, job, name)
    for each in (a, b):
        with pytest.raises(RequestError) as caught:
            await each.tokens.submitter(token, "s2")
        assert caught.value.error_class == ErrorClass.JOB_FENCED
        assert await each.tokens.submitter(second) == ("ann", None)
    await b.book.store_event(job, Kill("ann", 0))
    with pytest.raises(RequestError) as caught:
        await a.tokens.submitter(second)
    assert caught.value.error_class == ErrorClass.JOB_FENCED
    found = await a.book.job(job)
    assert found is not None and found.sessions == ((name, "s1"),)


async def test_invalid_token_is_refused_and_opens_no_session(ring: Ring) -> None:
    a = Haproc(ring, "a")
    job = await a.submit("pass")
    _, token = await begun(a, job)
    others = (token[:-1], f"{token}x", token.replace(f".{job}.", ".999."), "haproc-job.x.y.z")
    for wrong in (*others, "haproc-job.", f"haproc-job.{job}..x"):
        with pytest.raises(RequestError) as caught:
            await a.tokens.submitter(wrong, "s")
        assert caught.value.error_class == ErrorClass.UNAUTHENTICATED
    assert not [key for key in ring.keys.kept if "/s/" in key]


async def test_haproc_that_wakes_up_closes_no_session_of_the_attempt_that_replaced_its_own(
    three: list[Haproc],
) -> None:
    a, b, _ = three
    job = await a.submit(SAYS_TOKEN, conf={"haproc.restart": 1})
    await b.until(job, lambda found: len(found["log"]) == 1)
    await a.die()  # its program goes on, as beside a frozen one
    await b.until(job, lambda found: len(found["log"]) == 2)
    first, second = await b.log(job)
    for token in (first, second):
        with suppress(RequestError):
            await b.tokens.submitter(token, f"of {token[-5:]}")
    await a.runner.aclose()
    found = await b.book.job(job)
    assert found is not None and [each[1] for each in found.sessions] == [f"of {second[-5:]}"]
    assert a.ring.closed == []
    await b.service.kill("ann", job)
    await until(lambda: a.ring.closed == [("ann", f"of {second[-5:]}")])


async def test_sessions_of_an_earlier_attempt_are_closed_before_the_next_one_runs(
    ring: Ring,
) -> None:
    old = Haproc(ring, "x")
    job = await old.submit(PRINTS_ATTEMPT, conf={"haproc.restart": 1})
    _name, token = await begun(old, job)
    await old.tokens.submitter(token, "s1")
    a = await ring.haproc("a")
    found = await a.ended(job)
    assert found["state"] == "success" and ring.closed[0] == ("ann", "s1")
    await a.stop()
