"""Runs all modules' examples on Spark and through the ring: ``URL-OF-SPARK URL-OF-HAPROC``.

For each object with different results it prints the numbers of failures on both.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.doctests.run import MODULES, run


def main() -> int:
    """Return 1 if more fails through the ring than on Spark."""
    spark, ring = sys.argv[1:]
    differs = False
    for module in MODULES:
        with tempfile.TemporaryDirectory() as folder:
            direct = run(module, spark, Path(folder)).failed
            through = run(module, ring, Path(folder)).failed
        print(f"{module}: {sum(direct.values())} fail on Spark, {sum(through.values())} here")
        for name in sorted({*direct, *through}):
            if direct.get(name, 0) != through.get(name, 0):
                print(f"    {name}: {direct.get(name, 0)}, {through.get(name, 0)}")
                differs |= through.get(name, 0) > direct.get(name, 0)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
