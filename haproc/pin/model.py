"""What pinning a statement came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Treatment(StrEnum):
    """What has to be done with a statement before it may be replicated."""

    REPLICATE = "replicate"
    """Its text means the same everywhere."""
    MATERIALISE = "materialise"
    """Its query is run once and its rows are replicated instead."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A part of the statement that became a literal."""

    start: int
    end: int
    literal: str


@dataclass(frozen=True, slots=True)
class Moment:
    """What a statement's nondeterministic parts are fixed to. All given from outside.

    ``now`` is aware (UTC). ``random`` seeds the literals for rand(), uuid() and their like.
    """

    now: datetime
    random: int
    time_zone: str
    user: str
    catalog: str
    schema: str


@dataclass(frozen=True, slots=True)
class Source:
    """The query inside a statement that has to be materialised.

    ``query`` is the query's text; ``head`` is the text before it (``INSERT INTO t (a, b)``, or
    ``CREATE TABLE t USING delta AS`` …).
    """

    head: str
    query: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """A statement ready for the log, or the reason why it may not get there.

    ``sql`` has every replaceable part replaced. ``reasons`` names what could differ from cluster
    to cluster (for MATERIALISE and REFUSE), ``hint`` what the client can write instead.
    ``dispellable``: all of it is only doubtful, and Spark's analysis may show that nothing differs.
    ``source`` is there for every statement whose query could be materialised.
    """

    treatment: Treatment
    sql: str
    replacements: tuple[Replacement, ...] = ()
    reasons: tuple[str, ...] = ()
    hint: str = ""
    source: Source | None = None
    dispellable: bool = False
    unknown: frozenset[str] = frozenset()
    """The functions that are called and not Spark's own, without their schemas, in lower case."""

    @property
    def otherwise(self) -> Treatment:
        """What is left to do with it if it may not be replicated as it stands."""
        return Treatment.REFUSE if self.source is None else Treatment.MATERIALISE
