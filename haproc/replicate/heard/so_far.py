"""All that the log has said so far, beside the operations in the queue."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.replicate.heard.claims import Claims
from haproc.replicate.heard.computations import Computations
from haproc.replicate.heard.cursors import StoredCursors
from haproc.replicate.heard.definitions import Definitions
from haproc.replicate.heard.elsewhere import Elsewhere
from haproc.replicate.heard.past import Past
from haproc.replicate.heard.verdicts import Verdicts
from haproc.replicate.heard.words import Words
from haproc.replicate.heard.written import Written


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """See the module. The reader tells them; each is asked by whom it concerns."""

    verdicts: Verdicts
    """What became of synchronous operations."""
    computations: Computations
    """Operations' rows."""
    words: Words
    """Operations that clusters cannot apply."""
    claims: Claims
    """Which incarnation speaks for which cluster."""
    definitions: Definitions
    """What was defined anew."""
    past: Past
    """Where the log ended, and when."""
    elsewhere: Elsewhere
    """Operations that other clusters have passed."""
    written: Written
    """Which tables are written."""
    cursors: StoredCursors
    """What others' cursors say."""

    @classmethod
    def nothing(cls, window_records: int) -> Heard:
        """Return what is known before anything was read."""
        definitions, past = Definitions(window_records), Past(window_records)
        claims = Claims()
        return cls(
            Verdicts(),
            Computations(),
            Words(),
            claims,
            definitions,
            past,
            Elsewhere(),
            Written(),
            StoredCursors(claims),
        )

    def forget(self, below: int) -> None:
        """Forget what concerns operations that nobody asks about any more."""
        for each in (self.verdicts, self.computations, self.words, self.elsewhere):
            each.forget(below)
