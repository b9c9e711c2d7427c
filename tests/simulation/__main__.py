"""Run many seeds: ``python -m tests.simulation [seeds] [first seed]``."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.simulation.seeds import many, with_others


def main() -> int:
    """Print the results of the seeds; return 1 if any broke a promise."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began, bad, totals = time.monotonic(), 0, Counter[str]()
    for report in many(range(first, first + seeds), with_others):
        totals["acknowledged"] += report.acknowledged
        totals["rejected"] += report.rejected
        totals["unknown"] += report.unknown
        totals["kills"] += report.kills
        if report.problems:
            bad += 1
            print(f"seed {report.seed}:", *map(str, report.problems[:5]), sep="\n  ")
    seconds = time.monotonic() - began
    print(f"{seeds} seeds in {seconds:.0f} s: {dict(totals)}; {bad} broke a promise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
