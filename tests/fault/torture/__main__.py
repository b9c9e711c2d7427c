"""``python -m tests.fault.torture --minutes 20 --kills 100 --log sqlite --seed 1``.

``--check FILE`` judges an old history again instead. Exit code 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tests.fault.torture.history import Level
from tests.fault.torture.plan import Scheme, Target
from tests.fault.torture.run import Options, Verdict, judge, torture
from tests.fault.torture.workloads import LEVELS

RENEWALS = {"join": Scheme.MEMBER, "rebuild": Scheme.REBUILD, "repair": Scheme.REPAIR}


def main() -> int:
    """Run, print the figures and the violations."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--log", choices=("sqlite", "kafka"), default="sqlite")
    parser.add_argument("--brokers", type=int, default=3, help="with --log kafka")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--pace", type=float, default=6.5, help="seconds between faults")
    parser.add_argument(
        "--readers",
        type=Level,
        nargs="+",
        choices=list(Level),
        default=LEVELS,
        help="read levels at which some clients read",
    )
    parser.add_argument("--load", type=float, default=1.0, help="how much of the usual is written")
    parser.add_argument("--clients", nargs="+", default=[], help="only these, such as set-1")
    parser.add_argument("--programs", type=int, default=4, help="PySpark programs")
    parser.add_argument(
        "--targets",
        type=Target,
        nargs="+",
        choices=list(Target),
        default=tuple(Target),
        help="kinds of processes that are killed and frozen",
    )
    parser.add_argument(
        "--state", choices=("mesh", "redis"), default="mesh", help="redis is struck, too"
    )
    parser.add_argument(
        "--renewals",
        nargs="*",
        choices=sorted(RENEWALS),
        default=sorted(RENEWALS),
        help="what is done to clusters beside that, with kills in the midst of it",
    )
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--check", type=Path, default=None, help="a history to judge again")
    given = parser.parse_args()
    if given.check is not None:
        return _report(judge(given.check))
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    folder = given.folder or Path("build") / f"torture-{given.log}-{seed}-{int(time.time())}"
    options = Options(
        seed=seed,
        folder=folder.resolve(),
        minutes=given.minutes,
        kills=given.kills,
        log=given.log,
        brokers=given.brokers,
        pace_s=given.pace,
        levels=tuple(given.readers),
        load=given.load,
        targets=tuple(given.targets),
        clients=tuple(given.clients),
        programs=given.programs,
        redis=given.state == "redis",
        renewals=tuple(RENEWALS[name] for name in given.renewals),
    )
    signal.signal(signal.SIGTERM, _interrupted)
    print(f"seed {seed}, log {given.log}, in {options.folder}", flush=True)
    return _report(torture(options))


def _report(verdict: Verdict) -> int:
    print(verdict)
    return 1 if verdict.violations else 0


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that everything is cleaned up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
