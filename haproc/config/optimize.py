"""Which tables' small files are put together by the ring: keys below ``optimize``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizeRule:
    """Of several that match a table the first one counts."""

    table: str
    """A pattern of names, such as ``spark_catalog.sales.*``."""
    after_commits: int = 100
    """So many commits since its last OPTIMIZE bring the next. Chosen: with two files of each, that
    is how many a query of the table then reads at most besides the large ones."""


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE as the ring submits it by itself."""

    tables: tuple[OptimizeRule, ...] = ()
    """None: it submits none."""
    interval_s: float = 60.0
    """How often the tables that were written are looked at. Chosen."""
