"""``python -m tests.fault.job_kills --kills 20 --seed 1 --log sqlite``: a job and its kills.

One job writes batch after batch (`loading_job`) while at random moments its program, its HAProc or
its Spark is killed, or its HAProc frozen until another one has taken the job over. Each row must be
there once, on all clusters. Exit code 1: it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import statistics
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from dmq.opening import open_log
from haproc.config.services import kafka_options
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation, from_record
from haproc.ring.local import LocalRing
from haproc.ring.spark import SparkStartError
from tests.fault.loading_job import ROWS
from tests.rig import SPARK_SETTINGS, Rig

PROGRAM = Path(__file__).with_name("loading_job.py")
RESTARTS = 100
STEP_S = 120.0
"""A bound for a busy machine; the real times are printed."""
PROGRESS_S = 20.0
"""The longest wait for another batch before the next kill."""
PAUSE_S = 2.5
FROZEN_S = (0.5, 2.0)
"""The time for which a HAProc stays frozen after the takeover."""


class Deed(StrEnum):
    """The action against the job."""

    PROGRAM = "its program"
    HAPROC = "its HAProc"
    FREEZE = "its HAProc frozen until another one has the job"
    APPEND = "a HAProc frozen in front of an append of the job's, and the program"
    SPARK = "its Spark"
    BOTH = "its HAProc and its Spark"


def plan(seed: int, deeds: Sequence[Deed] = tuple(Deed)) -> Iterator[Deed]:
    """Yield deeds without an end; each comes once in a round."""
    chance = random.Random(f"job kills {seed}")
    while True:
        yield from chance.sample(deeds, len(deeds))


@dataclass
class RunResult:
    """The result of a run."""

    kills: Counter[Deed] = field(default_factory=Counter)
    attempts: int = 0
    batches: int = 0
    takeovers_s: list[float] = field(default_factory=list)
    """The times from a kill to the next attempt."""
    stopped: int = 0
    """Writes that came into the log behind a fence, and are applied nowhere."""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} x {deed}" for deed, count in sorted(self.kills.items()))
        taken = sorted(self.takeovers_s)
        s = f"p50 {statistics.median(taken):.1f} s, max {taken[-1]:.1f} s" if taken else "none"
        return (
            f"{sum(self.kills.values())} kills: {kills}\n{self.attempts} attempts, "
            f"{self.batches} batches, begun again after: {s}\n"
            f"writes stopped at a fence: {self.stopped}\n"
            f"wrong: {self.wrong or 'nothing'}"
        )


class Killing:
    """One run on a ring that serves."""

    def __init__(self, rig: Rig, seed: int, deeds: Sequence[Deed] = tuple(Deed)) -> None:
        self.result = RunResult()
        self._rig = rig
        self._chance = random.Random(f"moments {seed}")
        self._plan = plan(seed, deeds)
        self._starting: list[threading.Thread] = []
        self._frozen: set[str] = set()
        self._job = 0
        self._began = time.monotonic()

    def run(self, kills: int, minutes: float) -> RunResult:
        """Run a job until this number of kills; return the result."""
        rig, until = self._rig, time.monotonic() + 60 * minutes
        by_id, by_sql = rig.table("batch INT, n INT"), rig.table("batch INT, n INT")
        by_frame, enough = rig.table("batch INT, n INT, chance STRING"), rig.table("id INT")
        submission = {
            "code": PROGRAM.read_text(),
            "args": [by_id, by_sql, by_frame, enough],
            "conf": {"haproc.restart": RESTARTS},
        }
        status, made = rig.post(rig.ring.names[0], "/batches", submission)
        assert status == 201, made
        self._job = int(made["id"])
        self._say(f"job {self._job} is submitted")
        try:
            for _ in range(kills):
                if time.monotonic() > until:
                    break
                self._wait_for_progress()
                time.sleep(self._chance.uniform(0, PAUSE_S))
                self._strike(next(self._plan))
        finally:
            self._mend()
        rig.up()
        rig.run(f"INSERT INTO {enough} VALUES (1)")
        self._until(lambda found: found["haproc"]["outcome"] is not None)
        self._say("the job has ended")
        self._judge(by_id, by_sql, by_frame)
        self._say("judged")
        return self.result

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    # -- the job -----------------------------------------------------------------------------

    def _ask(self, path: str = "") -> Any:
        """Ask any HAProc that answers about the job; None if none does."""
        for name in self._rig.ring.names:
            if name not in self._frozen:
                with contextlib.suppress(OSError, ValueError):
                    url = f"{self._rig.url(name)}/batches/{self._job}{path}"
                    with urllib.request.urlopen(url, timeout=5) as response:
                        return json.load(response)
        return None

    def _shown(self) -> dict[str, Any]:
        end = time.monotonic() + STEP_S
        while (found := self._ask()) is None:
            assert time.monotonic() < end, "no HAProc answers for the job"
            time.sleep(0.1)
        return dict(found)

    def _until(self, holds: Any) -> dict[str, Any]:
        end = time.monotonic() + STEP_S
        while not holds(found := self._shown()):
            assert time.monotonic() < end, f"waited in vain: {found}, {self._lines()}"
            time.sleep(0.1)
        return found

    def _lines(self) -> list[str]:
        found = self._ask("/log?from=0&size=1000")
        return [] if found is None else list(found["log"])

    def _wait_for_progress(self) -> None:
        """Wait for another batch of a running attempt, but not for long."""
        end, lines = time.monotonic() + PROGRESS_S, len(self._lines())
        while time.monotonic() < end:
            found = self._shown()
            assert found["haproc"]["outcome"] is None, (found, self._lines())
            if any(line.startswith("wrote") for line in self._lines()[lines:]):
                return
            time.sleep(0.1)

    def _programs(self, attempt: int) -> list[int]:
        """Return the processes that run an attempt, by their working folder."""
        folder, found = f"/{self._job}-{attempt}", []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and str((process / "cwd").readlink()).endswith(folder):
                    found.append(int(process.name))
        return found

    # -- striking ----------------------------------------------------------------------------

    def _strike(self, deed: Deed) -> None:
        before = self._shown()["haproc"]
        name, attempts, began = before["cluster"], before["attempts"], time.monotonic()
        self._say(f"attempt {attempts} at {name}: {deed}")
        moves = True
        match deed:
            case Deed.PROGRAM:
                moves = self._kill_program(attempts)
            case Deed.HAPROC:
                self._kill(name, "haproc")
            case Deed.SPARK:
                self._kill(name, "spark")
                moves = False  # the program may notice nothing of it
            case Deed.BOTH:
                self._kill(name, "haproc")
                self._kill(name, "spark")
            case Deed.FREEZE:
                self._freeze(name)
            case Deed.APPEND:
                began = self._freeze_at_an_append(name)
                moves = self._kill_program(self._shown()["haproc"]["attempts"])
        self.result.kills[deed] += 1
        if moves:
            self._until(lambda found: found["haproc"]["attempts"] > attempts)
            self.result.takeovers_s.append(time.monotonic() - began)
            self._say(f"begun again after {self.result.takeovers_s[-1]:.1f} s")
        if self._frozen:
            time.sleep(self._chance.uniform(*FROZEN_S))
            self._thaw()

    def _kill_program(self, attempt: int) -> bool:
        """Kill the attempt's processes; False if there are none because it has not begun."""
        found = self._programs(attempt)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def _kill(self, name: str, what: str) -> None:
        """Kill with -9, and start the process again in a thread."""
        self._rig.ring.kill(name, what)
        pause_s = self._chance.uniform(0, PAUSE_S)
        thread = threading.Thread(target=self._start, args=(name, what, pause_s), daemon=True)
        thread.start()
        self._starting.append(thread)

    def _start(self, name: str, what: str, pause_s: float) -> None:
        time.sleep(pause_s)
        if what == "haproc":
            self._rig.start(name, ready=False)
        else:
            with contextlib.suppress(SparkStartError):  # killed again: it is started once more
                asyncio.run(self._rig.ring.sparks[name].start(warm=False))

    def _freeze(self, name: str) -> None:
        self._rig.ring.signal(name, "haproc", signal.SIGSTOP)
        self._frozen.add(name)

    def _thaw(self) -> None:
        for name in self._frozen:
            self._rig.ring.signal(name, "haproc", signal.SIGCONT)
        self._frozen.clear()

    def _freeze_at_an_append(self, runs_at: str) -> float:
        """Let a HAProc stop itself right before it appends a write of the job; return the time.

        It is not the one that runs the job: a program sends some of its writes to any HAProc.
        """
        self._mend()
        name = self._chance.choice([each for each in self._rig.ring.names if each != runs_at])
        self._rig.ring.kill(name, "haproc")
        self._rig.start(name, "append.before:1:stop", ready=False)
        self._frozen.add(name)  # from now on it may be
        end = time.monotonic() + STEP_S
        while not self._is_stopped(name):
            assert time.monotonic() < end, f"nothing is written through {name}"
            time.sleep(0.05)
        return time.monotonic()

    def _is_stopped(self, name: str) -> bool:
        pid = self._rig.ring.pids(name)["haproc"]
        assert pid is not None, f"the HAProc of {name} is gone"
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def _mend(self) -> None:
        """Wait until all killed processes are started again, and thaw the frozen ones."""
        self._thaw()
        for thread in self._starting:
            thread.join(STEP_S)
            assert not thread.is_alive(), "something does not start again"
        self._starting.clear()

    # -- judging -----------------------------------------------------------------------------

    def _judge(self, by_id: str, by_sql: str, by_frame: str) -> None:
        rig, found = self._rig, self._shown()
        self.result.attempts = found["haproc"]["attempts"]
        if found["state"] != "success":
            self.result.wrong.append(f"the job is {found['state']}: {found['haproc']['why']}")
        rig.check_equal(by_id, by_sql, by_frame)
        batches = {}
        for table, rows in ((by_id, 1), (by_sql, 1), (by_frame, ROWS)):
            there = rig.everywhere(f"SELECT batch, n FROM {table} ORDER BY batch, n")
            batches[table] = len(there) // rows
            expected = list(itertools.product(range(batches[table]), range(rows)))
            if [tuple(row) for row in there] != expected:
                self.result.wrong.append(f"{table} holds {there}")
        if len(set(batches.values())) != 1:
            self.result.wrong.append(f"not all tables have the same batches: {batches}")
        self.result.batches = min(batches.values())
        self.result.stopped = asyncio.run(self._stopped_at_fences())

    async def _stopped_at_fences(self) -> int:
        """Count the job's writes that are behind a fence although they were admitted before it."""
        config = self._rig.ring.config
        log = await open_log(config.log, record_bytes_max=1 << 30, kafka=kafka_options(config))
        name, count = f"job/{self._job}", 0
        definitions = Definitions(config.limits.window_records)
        try:
            position = await log.start()
            definitions.begin(position)
            while entries := await log.read(position):
                for entry in entries:
                    message = from_record(entry.record)
                    if isinstance(message, Fence):
                        definitions.note(entry.offset, message)
                    elif isinstance(message, Operation) and name in message.rests_on:
                        count += definitions.stale(entry.offset, message) is True
                position = entries[-1].offset + 1
        finally:
            await log.close()
        return count


def main() -> int:
    """Start a ring, run the kills, and print the result."""
    parser = argparse.ArgumentParser(prog="job_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=12.0, help="no more kills after that")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--log", choices=("sqlite", "kafka"), default="sqlite")
    parser.add_argument("--deeds", type=Deed, nargs="+", choices=list(Deed), default=tuple(Deed))
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    folder = given.folder or Path("build") / f"job-kills-{given.log}-{seed}-{int(time.time())}"
    folder.mkdir(parents=True)
    print(f"seed {seed}, log {given.log}, in {folder.resolve()}", flush=True)
    sparks = LocalRing.open_or_create(
        folder.resolve() / "sparks", memory="1g", cores=2, spark_settings=SPARK_SETTINGS
    )
    rig = Rig(folder.resolve(), sparks, given.log)
    try:
        rig.up()
        result = Killing(rig, seed, given.deeds).run(given.kills, given.minutes)
    finally:
        rig.down()
        asyncio.run(sparks.down())
    print(result)
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
