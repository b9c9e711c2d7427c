"""Fetches and builds all that a local Spark server needs: ``python -m haproc.ring.prepare``."""

from __future__ import annotations

import sys

from haproc.ring import runtime
from haproc.ring.runtime import RuntimeMissingError


def main() -> int:
    """Find, fetch or build all parts of a local Spark server; print where they are.

    Returns the exit code.
    """

    def show(step: str) -> None:
        print(f"  {step}", file=sys.stderr, flush=True)

    try:
        print(f"  Java: {runtime.java()}", file=sys.stderr)
        print(f"  Spark: {runtime.spark_home()}", file=sys.stderr)
        print(f"  Delta: {runtime.delta_jars(show)[0].parent}", file=sys.stderr)
        print(f"  HAProc's Spark plugin: {runtime.jar(show)}", file=sys.stderr)
    except RuntimeMissingError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
