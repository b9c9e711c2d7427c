"""Figures of the Spark Connect door for operators: numbers, never names or statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dmq import Json


@dataclass(frozen=True, slots=True)
class Figures:
    """``statements`` run at the moment, by what their plans do (`Does`).

    ``operations`` run or were not released by their clients yet, which may come for the result
    again; ``resumed`` are results that were gone on with after another run of them broke off, since
    this HAProc started.
    """

    statements: Mapping[str, int]
    operations: int
    resumed: int

    def fields(self) -> dict[str, Json]:
        """Return them for ``/clusterStatus``."""
        return {
            "statements": dict(self.statements),
            "operations": self.operations,
            "resumed": self.resumed,
        }
