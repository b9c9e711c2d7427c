"""What becomes of a statement, and the moment to which its moving parts are fixed."""

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
class Moment:
    """What a statement's nondeterministic parts are fixed to. All given from outside.

    ``now`` is aware (UTC).
    """

    now: datetime
    time_zone: str
    user: str
    catalog: str
    schema: str
