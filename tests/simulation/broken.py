"""Rules that several kinds of runs break on purpose."""

from __future__ import annotations

import pytest

from haproc.replicate.queue.schedule import Schedule


def batch_formed_anew(patch: pytest.MonkeyPatch) -> None:
    """After a crash, forget the intents and combine whatever is there."""
    original = Schedule.resume

    def forgetful(self: Schedule, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._old_batches, self._doubtful_below = {}, 0

    patch.setattr(Schedule, "resume", forgetful)
    patch.setattr(Schedule, "restore", lambda self, applied: [])
