"""The figures of a run: faults, operations, waits. Values in, values out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fault.torture.history import Level, Outcome, Read, Run, Verb
from tests.fault.torture.levels import judged_reads

_NEVER = math.inf


def figures(run: Run) -> dict[str, Any]:
    """Return everything that a report needs, ready for JSON."""
    nemesis = [event for event in run.events if event["type"] == "nemesis"]
    return {
        "seconds": round(_end_of_faults(run), 1),
        "kills": _kills(nemesis),
        "kills_total": sum(1 for event in nemesis if _is_kill(event)),
        "freezes": dict(Counter(e["target"] for e in nemesis if e["action"] == "freeze")),
        "cuts": dict(Counter(e["mode"] for e in nemesis if e["action"] == "cut")),
        "renewals": _renewals(run.events),
        "skipped": sum(1 for event in nemesis if event["action"] == "skip"),
        "operations": _operations(run),
        "reads": _reads(run),
        "levels": _levels(run),
        "failovers": _failovers(run),
        "programs": _programs(run),
        "longest_s": _longest(run),
        "no_cluster_ready_s": _without_any(run.events),
        "recovery_s": _recoveries(run.events),
        "log_operations": len(run.log) if run.log is not None else None,
    }


def _is_kill(event: Mapping[str, Any]) -> bool:
    return event["action"] in ("kill", "died at step", "kill before its step")


def _kills(nemesis: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return kills by target, and for each target by scheme."""
    found: dict[str, Counter[str]] = {}
    for event in filter(_is_kill, nemesis):
        what = event["scheme"]
        if event["action"] == "died at step":
            what = f"at {event['step'].partition(':')[0]}"
        elif event["scheme"] == "a HAProc at a step":
            what = "before it was armed" if event["action"] == "kill" else "armed in vain"
        found.setdefault(event["target"], Counter())[what] += 1
    return {target: dict(counts.most_common()) for target, counts in found.items()}


def _renewals(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the results of joins, rebuilds and repairs."""
    found: dict[str, Counter[str]] = {}
    for event in events:
        if event["type"] == "renewal" and "end" in event:
            end = event["end"].partition(":")[0]
            found.setdefault(event["deed"], Counter())[end] += 1
    return {deed: dict(counts) for deed, counts in sorted(found.items())}


def _operations(run: Run) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for op in run.ops:
        workload = op.process.partition("-")[0]
        if op.verb is Verb.WRONG:
            workload = "wrong"
        found.setdefault(workload, Counter())[op.outcome.value] += 1
    return {name: dict(counts) for name, counts in sorted(found.items())}


def _reads(run: Run) -> dict[str, int]:
    audits = sum(1 for read in run.reads if read.position is not None)
    failed = sum(1 for event in run.events if event["type"] == "read-failed")
    return {"ok": len(run.reads) - audits, "failed": failed, "audits": audits}


def _levels(run: Run) -> dict[str, dict[str, float]]:
    """Return by read level (and bound) the number of reads, their times, and their greatest age."""
    behind = {id(judged.read): judged.behind for judged in judged_reads(run)}
    found: dict[str, list[Read]] = {}
    for read in run.reads:
        if read.position is None:
            found.setdefault(_level(read.level, read.lag_max), []).append(read)
    failed = Counter(
        _level(event.get("level", Level.ANY), event.get("lag_max", 0))
        for event in run.events
        if event["type"] == "read-failed"
    )
    levels = {}
    for name in sorted(found.keys() | failed):
        reads = found.get(name, [])
        took = sorted(read.completed_s - read.invoked_s for read in reads)
        levels[name] = {
            "ok": len(reads),
            "failed": failed[name],
            "failovers": sum(read.failed_over for read in reads),
            "p50_s": _share(took, 0.5),
            "p99_s": _share(took, 0.99),
            "behind_max": max((behind.get(id(read), 0) for read in reads), default=0),
        }
    return levels


def _level(level: str, lag_max: int) -> str:
    return f"{level} by {lag_max}" if level == Level.BOUNDED else str(level)


def _failovers(run: Run) -> dict[str, int]:
    """Return the number of answers from another HAProc than the client had meant to ask."""
    writes = sum(op.failed_over for op in run.ops)
    return {"writes": writes, "reads": sum(read.failed_over for read in run.reads)}


def _programs(run: Run) -> dict[str, dict[str, Any]]:
    """Return for each PySpark program the state of its session, and the number of its moves."""
    found: dict[str, dict[str, Any]] = {}
    names = dict.fromkeys(e["process"] for e in run.events if e["type"] == "session")
    for name in names:
        mine = [e for e in run.events if e.get("process") == name]
        took = [op.took_s for op in run.ops if op.process == name and op.outcome is Outcome.ACK]
        seen = [read.cluster for read in run.reads if read.process == name]
        found[name] = {
            "sessions whole": sum(e["type"] == "session" and e["ok"] for e in mine),
            "writes": len(took),
            "reads": len(seen),
            "moves": sum(one != other for one, other in itertools.pairwise(seen)),
            "longest_s": round(max(took, default=0.0), 1),
            "errors": sum(e["type"] == "program-error" for e in mine),
        }
    return found


def _longest(run: Run) -> dict[str, float]:
    """Return the longest waits of clients, for acknowledged requests and for others."""
    acknowledged = sorted(op.took_s for op in run.ops if op.outcome is Outcome.ACK)
    others = [op.took_s for op in run.ops if op.outcome is not Outcome.ACK]
    reads = sorted(r.completed_s - r.invoked_s for r in run.reads if r.position is None)
    failed = [e["t"] - e["invoked"] for e in run.events if e["type"] == "read-failed"]
    return {
        "write_p50": _share(acknowledged, 0.5),
        "write_p99": _share(acknowledged, 0.99),
        "write_max": _share(acknowledged, 1.0),
        "write_in_vain_max": round(max((s for s in others if s != _NEVER), default=0.0), 2),
        "read_p50": _share(reads, 0.5),
        "read_p99": _share(reads, 0.99),
        "read_max": _share(reads, 1.0),
        "read_in_vain_max": round(max(failed, default=0.0), 2),
    }


def _share(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def _end_of_faults(run: Run) -> float:
    return next((float(e["t"]) for e in run.events if e["type"] == "calm"), 0.0)


def _without_any(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the time without any READY HAProc, in total and at the longest."""
    ready: set[str] = set()
    gaps: list[float] = []
    since: float | None = None
    for event in events:
        if event["type"] == "state":
            had = bool(ready)
            if event["state"] == "READY":
                ready.add(event["cluster"])
            else:
                ready.discard(event["cluster"])
            if had and not ready:
                since = float(event["t"])
        if since is not None and (ready or event is events[-1]):
            gaps.append(event["t"] - since)
            since = None
    total, longest = sum(gaps), max(gaps, default=0.0)
    return {"total": round(total, 1), "longest": round(longest, 1)}


def _recoveries(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the seconds from the last start of a killed process to READY, by what was killed."""
    found: dict[str, list[float]] = {}
    started: dict[str, tuple[float, str]] = {}
    for event in events:
        if event["type"] == "nemesis" and event["action"] == "start":
            if event["target"] == "broker":
                continue
            _, before = started.get(event["name"], (0.0, ""))
            what = event["target"] if before in ("", event["target"]) else "haproc and spark"
            started[event["name"]] = (float(event["t"]), what)
        elif event["type"] == "nemesis" and _is_kill(event):
            # Whatever was recovering is down again; what it had been waiting for stays known.
            if event["name"] in started:
                started[event["name"]] = (_NEVER, started[event["name"]][1])
        elif event["type"] == "state" and event["state"] == "READY":
            at, what = started.pop(event["cluster"], (_NEVER, ""))
            if at != _NEVER:
                found.setdefault(what, []).append(event["t"] - at)
    return {
        what: {
            "count": len(each),
            "p50": _share(sorted(each), 0.5),
            "max": _share(sorted(each), 1.0),
        }
        for what, each in sorted(found.items())
    }


def shown(values: Mapping[str, Any], indent: str = "  ") -> str:
    """Return figures as lines of text."""
    lines = []
    for name, value in values.items():
        if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
            lines.append(f"{indent}{name}:")
            lines.append(shown(value, indent + "  "))
        elif isinstance(value, dict):
            text = ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
            lines.append(f"{indent}{name}: {text}")
        else:
            lines.append(f"{indent}{name}: {value}")
    return "\n".join(lines)
