"""The states of a HAProc, derived from what is known about it.

A state is never stored: `state_of` computes it from a `Condition`, so no combination of events can
leave a wrong one behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What a HAProc may do now; the order of the checks is the order of `state_of`."""

    STOPPED = "STOPPED"
    FENCED = "FENCED"
    """Another incarnation has taken over this cluster."""
    TOO_FAR_BEHIND = "TOO_FAR_BEHIND"
    """The log no longer holds what this cluster missed."""
    DIVERGED = "DIVERGED"
    """This cluster's tables differ from the others'."""
    STUCK = "STUCK"
    """One operation keeps failing here for reasons of the environment."""
    DRAINING = "DRAINING"
    """Finishes what it has and takes nothing new."""
    STARTING = "STARTING"
    DOWN = "DOWN"
    """The cluster does not answer."""
    RECOVERING = "RECOVERING"
    """Applies what the cluster missed."""
    READ_ONLY = "READ_ONLY"
    """The log cannot be reached; queries are answered, writes are not taken."""
    READY = "READY"


SERVING: Final = frozenset({State.READY, State.READ_ONLY})
"""States in which the client door is open."""

HOPELESS: Final = frozenset({State.FENCED, State.TOO_FAR_BEHIND, State.DIVERGED})
"""States that no waiting ends."""

PROGRESSING: Final = frozenset({State.READY, State.READ_ONLY, State.RECOVERING, State.STARTING})
"""States in which a HAProc will run what it originated without anybody's help."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known of one HAProc; each ``*_at`` names the log offset concerned."""

    started: bool = False
    cluster_up: bool = False
    log_up: bool = True
    caught_up: bool = False
    draining: bool = False
    stopped: bool = False
    fenced_by: str | None = None
    stuck_at: int | None = None
    diverged_at: int | None = None
    behind: str = ""
    """Why the log cannot bring this cluster up to date, and what to do; empty if it can."""
    cluster_error: str = ""
    log_error: str = ""


def state_of(condition: Condition) -> tuple[State, str]:
    """Return the state and, where there is something to say, the reason and what to do."""
    c = condition
    if c.stopped:
        return State.STOPPED, ""
    if c.fenced_by is not None:
        return State.FENCED, (
            f"another process has taken over this cluster ({c.fenced_by}); stop this one"
        )
    if c.behind:
        return State.TOO_FAR_BEHIND, c.behind
    if c.diverged_at is not None:
        return State.DIVERGED, (
            f"the operation at offset {c.diverged_at} had another outcome here than on the other "
            "clusters; compare the tables it wrote and rebuild this cluster"
        )
    if c.stuck_at is not None and c.cluster_up:
        return State.STUCK, (
            f"the operation at offset {c.stuck_at} keeps failing here ({c.cluster_error}); "
            "it is tried again"
        )
    if c.draining:
        return State.DRAINING, "stopping"
    if not c.started:
        return State.STARTING, c.cluster_error
    if not c.cluster_up:
        return State.DOWN, c.cluster_error
    if not c.caught_up:
        return State.RECOVERING, c.log_error
    if not c.log_up:
        return State.READ_ONLY, c.log_error
    return State.READY, ""
