"""The record of a copy: a place in the order at which a donor notes what it holds.

``cluster`` is to become what ``donor`` is there. Everything below the record is in the donor's
tables then, and nothing behind it; so the copy goes on with the log from the record on. With
``tables`` only these are copied, and ``cluster`` comes to the record's place by itself. It copies
them there, or ``ahead`` of that: then they stand for the operations in front of the record that
write them.

``spare`` notes the same: it takes the donor's place if that one is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from msgspec import UNSET, UnsetType

BACKUP: Final = "(backup)"
"""Stands for a cluster where what the donor holds goes into a backup; no cluster's name."""


@dataclass(frozen=True, slots=True)
class Copy:
    """``epoch``: the claim of the process that copies; ``tables``: as `schema.table`."""

    cluster: str
    donor: str
    epoch: int
    tables: tuple[str, ...] = ()
    spare: str = ""
    ahead: Literal[True] | UnsetType = UNSET
