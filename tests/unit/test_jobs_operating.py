"""Tests of jobs as operators see them: schedules, ``haproc jobs``, the operators' door, metrics."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from haproc.cli import clients
from haproc.cli.main import _parser
from haproc.cli.queue import Asker, AskError
from haproc.config.jobs import Jobs, Schedule
from haproc.config.model import Address, Config
from haproc.jobs.here import Scheduler
from haproc.metrics import Metrics
from tests.unit.door_rig import door, until
from tests.unit.job_rig import Haproc, Ring

HOUR_S = 3600
NOON_S = 1_790_000_000 // HOUR_S * HOUR_S


# -- schedules ---------------------------------------------------------------------------------


@dataclass
class Clock:
    now_s: float = NOON_S

    def unix_ms(self) -> int:
        return int(self.now_s * 1000)


@pytest.fixture
def scheduled(tmp_path: Path) -> Ring:
    """A ring with a folder of programs; no HAProc runs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "hourly.py").write_text("pass")
    return Ring(tmp_path, Jobs(enabled=True, folders=(folder,)))


def scheduler(haproc: Haproc, clock: Clock, *names: str, leads: bool = True) -> Scheduler:
    schedules = [
        Schedule(name, f"{name}.py", every_s=HOUR_S, args=("x",), restarts=2) for name in names
    ]
    return Scheduler(schedules, haproc.service, "anonymous", lambda: leads, clock.unix_ms)


async def listed(haproc: Haproc) -> list[Any]:
    found = (await haproc.service.listed(None, 0, 100))["sessions"]
    assert isinstance(found, list)
    return found


async def test_schedule_submits_each_slot_once_when_two_haprocs_look(scheduled: Ring) -> None:
    clock, a, b = Clock(), Haproc(scheduled, "a"), Haproc(scheduled, "b")
    both = [scheduler(each, clock, "hourly") for each in (a, b)]
    [schedule] = both[0]._schedules
    for _ in range(2):
        await asyncio.gather(*(each.look(schedule) for each in both))
    [job] = await listed(a)
    assert (job["name"], job["owner"], job["haproc"]["restarts_left"]) == ("hourly", "anonymous", 2)
    assert job["haproc"]["request_id"] == f"schedule:hourly:{NOON_S}"
    await a.service.kill(None, job["id"])
    clock.now_s += HOUR_S
    await both[1].look(schedule)
    assert len(await listed(a)) == 2
    clock.now_s += HOUR_S + 1800  # nobody lived when the next one was due: it is left out
    await both[0].look(schedule)
    assert len(await listed(a)) == 2


async def test_schedule_whose_job_has_not_ended_waits_and_then_submits_the_newest_slot(
    scheduled: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    clock, a, b = Clock(), Haproc(scheduled, "a"), Haproc(scheduled, "b")
    both = [scheduler(each, clock, "hourly") for each in (a, b)]
    [schedule] = both[0]._schedules
    await both[0].look(schedule)
    for _ in range(2):
        clock.now_s += HOUR_S
        for each in (*both, *both):
            await each.look(schedule)
    [first] = await listed(a)
    assert caplog.text.count("its job before has not ended") == 2  # once by each
    await a.service.kill(None, first["id"])
    clock.now_s += 60
    for each in both:
        await each.look(schedule)
    ids = [job["haproc"]["request_id"] for job in await listed(a)]
    assert ids == [f"schedule:hourly:{NOON_S + HOUR_S * n}" for n in (0, 2)]


async def test_schedule_whose_program_changed_keeps_the_job_of_its_slot(
    scheduled: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    a = Haproc(scheduled, "a")
    before = scheduler(a, Clock(), "hourly")
    await before.look(before._schedules[0])
    (scheduled.settings.folders[0] / "hourly.py").write_text("pass  # a later version")
    restarted = scheduler(a, Clock(), "hourly")
    await restarted.look(restarted._schedules[0])
    assert len(await listed(a)) == 1
    assert caplog.text == ""


async def test_schedule_that_cannot_be_submitted_is_retried_and_blocks_no_other(
    scheduled: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    a = Haproc(scheduled, "a")
    both = scheduler(a, Clock(), "missing", "hourly")
    running = asyncio.ensure_future(both.run_forever())
    await until(lambda: bool(both._done))
    running.cancel()
    assert [job["name"] for job in await listed(a)] == ["hourly"]
    assert "schedule missing cannot be submitted" in caplog.text
    (scheduled.settings.folders[0] / "missing.py").write_text("pass")
    await both.look(both._schedules[0])
    assert [job["name"] for job in await listed(a)] == ["hourly", "missing"]


async def test_schedule_is_not_submitted_by_a_haproc_that_does_not_lead(
    scheduled: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.jobs.here.LOOK_S", 0.001)
    a, looks = Haproc(scheduled, "a"), 0

    def leads() -> bool:
        nonlocal looks
        looks += 1
        return False

    one = Scheduler([Schedule("s", "hourly.py", every_s=1)], a.service, "x", leads, Clock().unix_ms)
    running = asyncio.ensure_future(one.run_forever())
    await until(lambda: looks > 3)
    running.cancel()
    assert await listed(a) == []


# -- the operators' door and the command -------------------------------------------------------


@asynccontextmanager
async def operated(tmp_path: Path) -> AsyncIterator[tuple[Haproc, Config]]:
    """A HAProc that runs jobs, its operators' door, and a configuration that names the door."""
    haproc = await Ring(tmp_path).haproc("a")
    try:
        async with door(tmp_path, operator=True, jobs=haproc.service) as rig:
            away, here = rig.config.clusters
            here = replace(here, peer=Address("127.0.0.1", rig.listener.port))
            yield haproc, replace(rig.config, clusters=(away, here))
    finally:
        await haproc.stop()


def options(config: Config, *arguments: str) -> argparse.Namespace:
    found = _parser().parse_args(["jobs", *arguments, "--config", "ring.yaml"])
    found.ring = config
    return found


async def test_jobs_of_all_users_are_listed_shown_and_killed_by_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with operated(tmp_path) as (haproc, config), Asker(config) as asker:
        done = await haproc.submit("print('one'); print('two')", "ann", name="count")
        await haproc.ended(done)
        waits = await haproc.submit("import time; time.sleep(100)", "bob")
        assert await clients.list_jobs(asker, options(config, "list")) == 0
        head, first, second = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["JOB", "USER", "NAME", "STATE"]
        assert first.split()[:6] == [str(done), "ann", "count", "success", "a", "1"]
        assert second.split()[:3] == [str(waits), "bob", "program.py"]
        await clients.list_jobs(asker, options(config, "list", "--json", "--limit", "1"))
        assert json.loads(capsys.readouterr().out)["total"] == 2
        await clients.list_jobs(asker, options(config, "list", "--start", "1"))
        assert "1 of 2; --start and --limit show others" in capsys.readouterr().out
        assert await clients.show(asker, options(config, "show", str(done))) == 0
        shown = capsys.readouterr().out.splitlines()
        assert "state: success" in shown and "exit_code: 0" in shown and shown[-1] == "  two"
        assert await clients.log(asker, options(config, "log", str(done))) == 0
        assert capsys.readouterr().out == "one\ntwo\n"
        assert await clients.kill(asker, options(config, "kill", str(waits))) == 0
        assert (await haproc.shown(waits))["state"] == "killed"
        assert (await haproc.shown(waits))["haproc"]["why"] == "killed by an operator"
        assert haproc.ring.fenced == [waits]
        with pytest.raises(AskError, match="there is no job 999"):
            await clients.show(asker, options(config, "show", "999"))


async def test_log_of_a_job_is_printed_whole_page_by_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PAGE", 3)
    async with operated(tmp_path) as (haproc, config), Asker(config) as asker:
        job = await haproc.submit("for n in range(10): print(n)")
        await haproc.ended(job)
        await clients.log(asker, options(config, "log", str(job)))
        assert capsys.readouterr().out.split() == [str(n) for n in range(10)]


async def test_operators_door_requires_the_rings_secret(tmp_path: Path) -> None:
    async with operated(tmp_path) as (haproc, config):
        job = await haproc.submit("import time; time.sleep(100)")
        wrong = replace(config, secret="another")
        async with Asker(wrong) as asker:
            for call in (clients.show, clients.log, clients.kill):
                with pytest.raises(AskError, match="ring's secret"):
                    await call(asker, options(wrong, call.__name__, str(job)))
        assert (await haproc.shown(job))["state"] != "killed"


# -- metrics -----------------------------------------------------------------------------------


async def test_metrics_count_the_rings_jobs_and_the_attempts_that_ended_here(
    tmp_path: Path,
) -> None:
    a = await Ring(tmp_path).haproc("a")
    metrics = Metrics("demo", "a", ["READY"])

    def measured() -> str:
        metrics.jobs(a.runner.running, a.runner.of_ring, a.runner.take_ended())
        return metrics.text().decode()

    waits = await a.submit("import time; time.sleep(100)")
    failed = await a.submit("raise SystemExit(3)", conf={"haproc.restart": 1})
    await a.ended(failed)
    await until(lambda: a.runner.running == 1 and a.runner.of_ring["dead"] == 1)
    text = measured()
    assert "haproc_job_attempts_running 1.0" in text
    assert 'haproc_jobs{state="running"} 1.0' in text and 'haproc_jobs{state="dead"} 1.0' in text
    assert 'haproc_job_attempts_total{outcome="failed"} 2.0' in text
    assert 'haproc_job_attempts_total{outcome="failed"} 2.0' in measured()  # each is told once
    await a.service.kill("ann", waits)
    await until(lambda: a.runner.running == 0)
    assert "haproc_job_attempts_running 0.0" in measured()
    await a.stop()
