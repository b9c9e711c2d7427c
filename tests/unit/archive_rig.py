"""The archive's view of a log in memory or in a file, without a ring around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmq import KeyValueStore, Log
from haproc.config.model import Timeouts
from haproc.config.sections import Archive, Limits
from haproc.membership.peers import PeerUnavailableError
from haproc.replicate.archive.account import ArchivePosition
from haproc.replicate.archive.pages import Pages
from haproc.replicate.member.condition import Identity
from haproc.replicate.member.core import Core, Reached


class Peer:
    """Cluster b knows the latencies at even offsets, c does not answer."""

    async def latencies(
        self, peer: str, start: int, end: int, timeout_s: float
    ) -> Mapping[int, int]:
        if peer == "c":
            raise PeerUnavailableError("away")
        return {offset: 100 + offset for offset in range(start, end) if offset % 2 == 0}

    def is_gone(self, peer: str) -> bool:
        return False


async def has_read(offset: int, timeout_s: float) -> bool:
    """The member has read the whole log."""
    return True


def pages_of(
    log: Log, store: KeyValueStore, rules: Archive | None = None, window_records: int = 65_536
) -> Pages:
    """Return the archive pages of cluster a of a, b and c."""
    identity = Identity("demo", "a", "a1", ("a", "b", "c"))
    limits = Limits(window_records=window_records)
    nobody: Any = None
    core = Core.of(identity, Reached(log, nobody, nobody), limits, Timeouts())
    rules = rules or Archive(user="archive")
    return Pages(core, has_read, Peer(), ArchivePosition(store), rules, "ring-secret")
