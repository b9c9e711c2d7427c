"""The pools of Spark's scheduler: which one what HAProc has a cluster run is in."""

from __future__ import annotations

from typing import Final

POOL: Final = "spark.scheduler.pool"
"""Spark hands a session's settings to its scheduler, too."""


_USERS: Final = "user/"
CHECKS_POOL: Final = "checks"
"""That of verifications, which read whole tables."""
READING_POOL: Final = "reading"
"""That of statements that are read: they run no tasks."""


def pool_of(user: str) -> str:
    """Return the pool of Spark's scheduler in which a user's queries run.

    Where the cluster schedules fairly, pools take turns at its cores, task by task: one user's
    queries of minutes leave another's of a row their turns, and so they do what runs in other
    pools. Only short looks at the cluster (probes) have none of their own. Else Spark
    takes no notice of it.
    """
    return f"{_USERS}{user}"


def is_users(pool: str) -> bool:
    """Whether a pool is that of a user's queries."""
    return pool.startswith(_USERS)


def pool_of_lane(index: int) -> str:
    """Return the pool of the writes that a lane applies.

    Each lane has its own, so no write waits for the tasks of a longer one that another lane runs.
    """
    return f"lane/{index}"


def pool_of_rows(user: str) -> str:
    """Return the pool of the queries that compute the rows of a user's writes."""
    return f"rows/{user}"
