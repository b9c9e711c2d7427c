"""One run: a ring, clients, faults; then an end of all faults, and the verdict."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haproc.ring.local import LocalRing
from tests.fault.torture import audit, workloads
from tests.fault.torture.checker import check
from tests.fault.torture.figures import figures, shown
from tests.fault.torture.history import History, Level, Run, load
from tests.fault.torture.nemesis import Nemesis
from tests.fault.torture.part import Part
from tests.fault.torture.plan import Fault, Scheme, Target, plan
from tests.fault.torture.programs import ENDS_S, make_programs
from tests.fault.torture.renewals import Renewals
from tests.fault.torture.stage import Stage, open_ring, python_path
from tests.fault.torture.violations import Violation
from tests.fault.torture.watch import Watch
from tests.redis_servers import RedisServer

SETTINGS = {
    "timeouts": {
        "probe_interval_s": 0.5,
        "takeover_s": 1.5,
        "peer_s": 1.5,
        "retry_max_s": 1.0,
        "drain_s": 10,
    },
    # So that rows come in several parts here, too.
    "limits": {"part_bytes_max": 65536, "part_rows_max": 1000},
}
_CLIENT_ENDS_S = 90.0
"""More than a client's longest request."""
_PART_ENDS_S = 60.0
SETTLED_S = 300.0
_TURN_S = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. It ends when ``minutes`` or ``kills`` is reached."""

    seed: int
    folder: Path
    minutes: float = 3.0
    kills: int = 20
    log: str = "sqlite"
    brokers: int = 3
    pace_s: float = 6.5
    levels: tuple[Level, ...] = workloads.LEVELS
    """The levels at which some clients read."""
    load: float = 1.0
    """The share of the usual writes."""
    targets: tuple[Target, ...] = tuple(Target)
    """The kinds of processes that are killed and frozen."""
    clients: tuple[str, ...] = ()
    """The names of haclient's clients to run; empty for all."""
    programs: int = 4
    """The number of PySpark programs beside the other clients."""
    redis: bool = False
    """True if the HAProcs keep their state in a Redis, which is struck, too."""
    renewals: tuple[Scheme, ...] = ()
    """The joins, rebuilds and repairs to include."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run."""

    run: str
    violations: tuple[Violation, ...]
    figures: dict[str, Any]
    history: Path

    def __str__(self) -> str:
        found = "\n".join(f"  {violation}" for violation in self.violations) or "  none"
        return f"{self.run}, {self.history}\n{shown(self.figures)}\nviolations:\n{found}"


def judge(history: Path) -> Verdict:
    """Check a history, of this run or an old one."""
    run: Run = load(history)
    begin = next((event for event in run.events if event["type"] == "run"), {})
    title = f"seed {begin.get('seed')}, log {begin.get('log')}"
    return Verdict(title, tuple(check(run)), figures(run), history)


def torture(options: Options, ring: LocalRing | None = None) -> Verdict:
    """Run it and judge it. A given ring must run, and only its HAProcs are stopped."""
    python_path()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "history.jsonl"
    file.unlink(missing_ok=True)
    owned = ring is None
    if ring is None:
        ring = open_ring(options.folder / "ring", options.log, options.brokers, SETTINGS)
    history = History(file)
    redis = RedisServer(options.folder) if options.redis else None
    stage = Stage(ring, redis)
    try:
        if redis is not None:
            redis.start()
        _play(options, stage, history)
    finally:
        stage.down(sparks=owned)
        if redis is not None:
            redis.kill()
        history.close()
    verdict = judge(file)
    (options.folder / "verdict.txt").write_text(f"{verdict}\n")
    (options.folder / "figures.json").write_text(json.dumps(verdict.figures, indent=1) + "\n")
    return verdict


def _play(options: Options, stage: Stage, history: History) -> None:
    stage.up()
    workloads.make_tables([stage.url(name) for name in stage.names])
    log = stage.ring.config.log.partition(":")[0]
    history.write("run", seed=options.seed, log=log, brokers=stage.brokers, clusters=stage.names)

    def planned() -> Iterator[Fault]:
        return plan(
            options.seed,
            stage.names,
            stage.brokers,
            stage.proxies.names,
            options.pace_s,
            redis=options.redis,
            targets=options.targets,
            renewals=options.renewals,
        )

    for fault in itertools.islice(planned(), 2 * options.kills):
        history.write("plan", fault=str(fault), scheme=fault.scheme)
    watch = Watch(lambda: stage.ring.config, history)
    renewals = Renewals(stage, options.seed, history)
    nemesis = Nemesis(stage, planned(), history, lambda: watch.starved, renewals.ask)
    auditor = audit.Auditor(stage.ring.config, options.seed, history)
    clients = workloads.make_clients(
        stage.url,
        stage.names,
        options.seed,
        history,
        options.levels,
        options.load,
        options.clients,
    )
    programs = make_programs(
        stage.address,
        stage.names,
        options.seed,
        history,
        count=options.programs,
        first_number=workloads.NUMBER_MAX + 1,
    )
    parts: list[Part] = [watch, auditor, *clients, *programs, renewals, nemesis]
    try:
        for part in parts:
            part.start()
        _wait_for_faults(options, nemesis, parts)
        nemesis.calm()
        history.write("calm", kills=dict(nemesis.kills))
        _end([auditor, *clients], _CLIENT_ENDS_S, programs)
        _end(programs, ENDS_S + _CLIENT_ENDS_S)
        _wait_until(lambda: not renewals.busy, SETTLED_S)
        settled = _wait_until(lambda: nemesis.all_run() and watch.settled, SETTLED_S)
        history.write("settled", ok=settled, status=watch.status)
    finally:
        for part in parts:
            part.stop()
        for part in (nemesis, renewals, watch):
            if part.is_alive():
                part.join(_PART_ENDS_S)
    failed = [part for part in parts if part.error is not None]
    if failed:
        raise RuntimeError(f"the harness itself failed: {failed[0].name}") from failed[0].error
    # Where the ring is not at rest, tables may differ rightly; the log tells what should be there.
    tables = _tables(options.folder / "history.jsonl") if settled else None
    asyncio.run(audit.finish(stage.ring.config, tables, history))


def _wait_for_faults(options: Options, nemesis: Nemesis, parts: Sequence[Part]) -> None:
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end and sum(nemesis.kills.values()) < options.kills:
        if not all(part.is_alive() for part in parts):
            return  # one failed; it is reported when all have ended
        time.sleep(_TURN_S)


def _end(parts: Sequence[Part], within_s: float, others: Sequence[Part] = ()) -> None:
    for part in (*parts, *others):
        part.stop()
    end = time.monotonic() + within_s
    for part in parts:
        part.join(max(0.0, end - time.monotonic()))
        if part.is_alive():
            raise RuntimeError(f"{part.name} does not come to its end")


def _wait_until(condition: Any, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_TURN_S)
    return True


def _tables(history: Path) -> list[str]:
    """Return all tables that clients used."""
    return sorted({*workloads.TABLES, *(op.table for op in load(history).ops)})
