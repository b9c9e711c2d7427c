"""Rules that several modules of tests break on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from haproc.engine.remote import RemoteSession
from haproc.replicate import trim
from haproc.replicate.apply import applier
from haproc.replicate.queue.schedule import Schedule

BreakRule: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def batch_formed_anew(patch: pytest.MonkeyPatch) -> None:
    """After a crash, forget the intents and combine all operations."""
    original = Schedule.resume

    def forgetful(self: Schedule, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._old_batches, self._doubtful_below = {}, 0

    patch.setattr(Schedule, "resume", forgetful)
    patch.setattr(Schedule, "restore", lambda self, applied: [])


def marks_dropped(patch: pytest.MonkeyPatch) -> None:
    """Send statements without their marks."""
    patch.setattr(applier, "TransactionMarker", lambda application, version, guarded: None)


def not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Leave a lane's session without ending it, and what may still be running there."""

    async def nothing(self: RemoteSession, ids: int = 1) -> None:
        self._new_epoch()

    patch.setattr(RemoteSession, "move_on", nothing)


def slowest_ignored(patch: pytest.MonkeyPatch) -> None:
    """Trim as if the member that is farthest behind were none."""
    needs = trim.needs
    patch.setattr(trim, "needs", lambda *facts: needs(*facts)[1:])
