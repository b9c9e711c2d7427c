"""The times of calls, and the memory and processor time of processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

WARM_UP = 3
"""Calls of each side that are not counted."""


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turn(
    first: Callable[[], object], second: Callable[[], object], times: int
) -> tuple[float, float]:
    """Run two calls alternately and return the median time of each in seconds."""
    first_s, second_s = times_in_turn(first, second, times)
    return statistics.median(first_s), statistics.median(second_s)


def times_in_turn(
    first: Callable[[], object], second: Callable[[], object], times: int
) -> tuple[list[float], list[float]]:
    """Run two calls alternately and return the times of each in seconds."""
    taken = [(timed(first), timed(second)) for _ in range(WARM_UP + times)][WARM_UP:]
    return [pair[0] for pair in taken], [pair[1] for pair in taken]


def forget_peak(pid: int | str) -> None:
    """Let the kernel count the most memory that a process has had from here on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(pid: int | str) -> float:
    """Return the most memory that a process has had, in MiB; ``self`` is this process."""
    return _memory(pid, "VmHWM")


def resident(pid: int | str) -> float:
    """Return the memory that a process has, in MiB; ``self`` is this process."""
    return _memory(pid, "VmRSS")


def _memory(pid: int | str, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{what}:"))
    return int(found) / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, all its threads together."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks.iterdir()) / 1e9
