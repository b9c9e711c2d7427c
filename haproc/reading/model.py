"""What the judge says of a statement, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from haproc.pin.model import Treatment
from haproc.reading.tree import TextRange


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
    place: TextRange | None = None
    remedy: Remedy = Remedy.ROWS
    literal: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the session says that the trees do not.

    ``legacy``: its time parser is the legacy one, in whose formats the clock has a say.
    ``vouched``: a rule of the operator's vouches for classes that are in no list.
    """

    legacy: bool = False
    vouched: bool = False


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """What becomes of a write.

    ``reads``: all tables and views that it reads, as Spark sees them; ``rests_on``: these, what it
    writes, and the functions that it calls; changing the definition of any of them may change the
    verdict. ``known``: nothing is missing from these. ``expressions``: as `Touched` has them.
    ``of_session``: it means what it means in its client's session only.
    """

    treatment: Treatment
    reasons: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()
    known: bool = True
    hint: str = ""
    of_session: bool = False
    expressions: frozenset[str] = frozenset()
