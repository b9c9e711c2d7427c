"""Which tables' small files are put together by the ring: keys below ``optimize``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizeRule:
    """Of several that match a table the first one counts."""

    table: str
    """A pattern of names, such as ``spark_catalog.sales.*``; the first that matches counts."""
    after_commits: int = 100
    """Commits since the last OPTIMIZE after which the next one is submitted. Chosen: with two files
    of each, a query of the table reads at most so many besides the large ones."""


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE as the ring submits it by itself."""

    tables: tuple[OptimizeRule, ...] = ()
    """Tables whose small files the ring compacts. Empty: it submits no OPTIMIZE."""
    interval_s: float = 60.0
    """How often the tables that were written are checked. Chosen, not measured."""
