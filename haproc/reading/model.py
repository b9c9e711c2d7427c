"""What the judge says of a statement, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from haproc.reading.tree import Place


class Remedy(StrEnum):
    """What can be done about a part that would not be the same on every cluster."""

    VALUE = "value"
    """One value for the whole statement: a literal stands in its place."""
    ROWS = "rows"
    """The rows of the query that it stands in, computed once, stand for that query."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a statement that could differ from cluster to cluster.

    ``reason``: a sentence without a full stop, which names the very part. ``place``: where it
    stands in the text, as far as that is known. ``literal``: what takes its place (VALUE).
    ``hint``: what to write instead, if nothing can be done about it.
    """

    reason: str
    place: Place | None = None
    remedy: Remedy = Remedy.ROWS
    literal: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the session says about how a statement is computed.

    ``ansi``: what overflows is an error. ``legacy``: its time parser is the legacy one, in whose
    formats the clock has a say. ``assigns_strictly``: rows are fitted to a table by the ANSI rules
    of Spark's store assignment.
    """

    ansi: bool = True
    legacy: bool = False
    assigns_strictly: bool = True
