"""A profile of a HAProc that drains a backlog on a cluster that costs nothing.

``python -m bench.profile_drain [inserts|mixed|alone] [operations]`` (inserts, 100,000). First as it
is, then under cProfile, which splits the event loop's thread into parts; it makes all of them
slower, so only their shares mean something.
"""

from __future__ import annotations

import cProfile
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any, Final

import uvloop

from bench.bench_growth import KINDS, filled
from bench.draining import drain, ring_config
from haproc.cli.nodes import prepare_process
from haproc.replicate.log_state.definitions import Written
from haproc.replicate.member.own_log import OwnLog
from haproc.replicate.queue.outcomes import Outcomes
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import Composing, Unit
from haproc.replicate.reader import Reader
from haproc.replicate.records.operation import from_record

NAMES: Final = ("inserts", "mixed", "alone")
"""Of the kinds of backlog, in their order."""
PARTS: Final[Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]]] = {
    "taking a record apart": ((from_record,), ()),
    "is it new, or stale": ((Reader._is_new,), ()),
    "which tables it writes": ((Written.note,), ()),
    "into the queue, done, out of it": (
        (Schedule.enter_operation, Schedule.complete, Schedule.release),
        (),
    ),
    "what runs now, and together": ((Schedule.take,), (Composing.composed,)),
    "composing what is not alike": ((Composing.composed,), ()),
    "one text of those that are": ((Unit.write,), ()),
    "remembering what became of it": ((Outcomes.admit, Outcomes.resolve), ()),
    "storing how far it is": ((OwnLog._commit,), ()),
}
"""The time spent in the first functions, without the second ones, which they call."""


def main() -> None:
    """Profile and print."""
    chosen = [*KINDS][NAMES.index(sys.argv[1]) if sys.argv[1:] else 0]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    prepare_process()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uvloop.run(filled(folder / "made", chosen, count))
        shutil.copytree(folder / "made", folder / "again")
        plain_s = _spent(folder / "made", count)
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        profiled_s = _spent(folder / "again", count)
        profile.disable()
    stats: Any = pstats.Stats(profile)
    spent = {where: found[3] for where, found in stats.stats.items()}
    shares = {
        part: (sum(_of(spent, each) for each in into) - sum(_of(spent, each) for each in less))
        / profiled_s[0]
        for part, (into, less) in PARTS.items()
    }
    shares["all else"] = 1 - sum(shares.values())
    print(f"{chosen}, {count:,}: for each {plain_s[0] / count * 1e6:.0f} us of the event loop's")
    print(f"thread, and {plain_s[1] / count * 1e6:.0f} of the log's. Of the former:")
    for part, share in shares.items():
        print(f"  {part:40} {share:6.1%}")


def _spent(folder: Path, count: int) -> tuple[float, float]:
    """Return the seconds of processor time that draining takes in this thread, and in others."""
    own, whole = time.thread_time(), time.process_time()
    uvloop.run(drain(ring_config(folder, 2), count))
    own = time.thread_time() - own
    return own, time.process_time() - whole - own


def _of(spent: Mapping[Any, float], function: Any) -> float:
    code: CodeType = function.__code__
    return spent.get((code.co_filename, code.co_firstlineno, code.co_name), 0.0)


if __name__ == "__main__":
    main()
