"""What is stored with the cursor beside the queue's own progress. Values in, values out."""

from __future__ import annotations

from dataclasses import replace

from haproc.membership.state import Divergence, Undecided
from haproc.replicate.records.progress import JUDGING_MAX, Progress


class Notes:
    """See the module, and `Progress`, which says what each of them is."""

    def __init__(self) -> None:
        self.resume(Progress())

    def resume(self, progress: Progress) -> None:
        """Begin from a stored progress."""
        self._diverged = progress.diverged
        self._undecided = progress.undecided
        self._born = progress.born
        self._judging = set(progress.judging)
        self._storage = progress.storage

    def beside(self, progress: Progress) -> Progress:
        """Return the progress with these notes in it."""
        return replace(
            progress,
            diverged=self._diverged,
            undecided=self._undecided,
            born=self._born,
            judging=self.judging[-JUDGING_MAX:],
            storage=self._storage,
        )

    @property
    def born(self) -> int:
        """The claim of the first process that began without a cursor."""
        return self._born

    @property
    def storage(self) -> str:
        """The id of the marker in the storage to which all this belongs."""
        return self._storage

    def belongs_to(self, storage: str) -> None:
        """Remember the storage."""
        self._storage = storage

    @property
    def diverged(self) -> Divergence | None:
        """How this cluster differs from the others."""
        return self._diverged

    def mark_diverged(self, divergence: Divergence) -> Divergence:
        """Remember that this cluster differs from the others; return how."""
        self._diverged = divergence.joined(self._diverged)
        return self._diverged

    def mark_verified(self, marker: int) -> None:
        """Forget it if it was found at or before a verification that found the tables equal."""
        if self._diverged is not None and self._diverged.offset <= marker:
            self._diverged = None

    @property
    def undecided(self) -> Undecided | None:
        """How clusters differ without a proof of which is wrong."""
        return self._undecided

    def mark_undecided(self, undecided: Undecided) -> Undecided:
        """Remember that clusters differ; return the newest such difference."""
        if self._undecided is None or self._undecided.offset <= undecided.offset:
            self._undecided = undecided
        return self._undecided

    def decide(self, marker: int) -> Undecided | None:
        """Forget it if a verification at or behind it decided; return what is left."""
        if self._undecided is not None and self._undecided.offset <= marker:
            self._undecided = None
        return self._undecided

    @property
    def judging(self) -> tuple[int, ...]:
        """The operations whose outcomes are to be compared with the other clusters'."""
        return tuple(sorted(self._judging))

    def judge(self, offset: int) -> None:
        """Remember that an operation's outcome is to be compared."""
        self._judging.add(offset)

    def judged(self, offset: int) -> None:
        """Forget that: it was compared."""
        self._judging.discard(offset)
