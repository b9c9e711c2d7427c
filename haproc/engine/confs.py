"""Settings of sessions: the pool of Spark's scheduler, and the changes that a lane must make."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from haproc.engine.interface import Settings, TransactionMarker

# The pools of Spark's scheduler for the statements that HAProc sends.


POOL: Final = "spark.scheduler.pool"
"""The session setting that chooses the pool of Spark's scheduler."""


_USERS: Final = "user/"
CHECKS_POOL: Final = "checks"
"""The pool of Spark's scheduler for verifications, which read whole tables."""
READING_POOL: Final = "reading"
"""The pool of Spark's scheduler for plan readings: they run no tasks."""


def pool_of(user: str) -> str:
    """Return the pool of Spark's scheduler in which a user's queries run.

    If the cluster schedules fairly, its pools take turns at the cores, task by task. So a user's
    long queries do not block another user's short ones, or other pools. Only short statements of
    HAProc (probes) have no pool. If the cluster does not schedule fairly, Spark ignores pools.
    """
    return f"{_USERS}{user}"


def is_users(pool: str) -> bool:
    """True if a pool of Spark's scheduler is for one user's queries."""
    return pool.startswith(_USERS)


def pool_of_lane(index: int) -> str:
    """Return the pool of Spark's scheduler for the writes that a lane applies.

    Each lane has its own, so that no write waits for the tasks of a longer write in another lane.
    """
    return f"lane/{index}"


def pool_of_rows(user: str) -> str:
    """Return the pool of Spark's scheduler for queries that compute the rows of a user's writes."""
    return f"rows/{user}"


# The session settings that a lane must change before a statement.
#
# A lane's statements each come with all settings that change their meaning. A setting of the last
# statement that this one does not have goes back to the server's default. A transaction marker is
# unset. Any other setting is set to the value of an untouched session, because unsetting would give
# Spark's built-in default, not the server's configuration. After a failed call the settings are
# unknown: then all are set again, and all that may have been set are reset.


_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
TIME_ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
_CACHED = "spark.sql.haproc.cached"
"""A session with this setting finds the tables that clients cached:
haproc/spark/CacheIdentity.java."""
_GUARDED = "spark.sql.haproc.guarded"
"""With this setting a session changes nothing but itself: haproc/spark/Guard.java. Its value is the
list of path prefixes of the files that statements may name: haproc/spark/Files.java."""
_APPLICATION = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
MARKER_CONFS = (_APPLICATION, _VERSION, _USER_METADATA)
_OWN = frozenset({*MARKER_CONFS, POOL, _CACHED, _GUARDED})


@dataclass(frozen=True, slots=True)
class Change:
    """The calls that change a session's settings: what they set, unset and reset.

    ``sets``: names with new values. ``unsets``: names that lose their value. ``resets``: names with
    the server's defaults; if Spark refuses one of these, that is ignored.
    """

    sets: tuple[tuple[str, str], ...] = ()
    unsets: tuple[str, ...] = ()
    resets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class InForce:
    """The settings that a session has in Spark, as far as HAProc knows.

    ``confs``: names and values; None if they are unknown. ``possible``: if they are unknown, the
    names that may have a value.
    """

    confs: Mapping[str, str] | None = None
    possible: frozenset[str] = field(default_factory=frozenset)


def wanted(
    settings: Settings, marker: TransactionMarker | None, pool: str = "", paths: Sequence[str] = ()
) -> dict[str, str]:
    """Return all settings, by their names in Spark, that a statement runs under.

    A pool that the client chose is ignored: it could give more of the cluster than a user's share.
    Only a session in a user's pool finds tables that users cached. ``paths``: the folders for files
    that a guarded session's statements may name.
    """
    confs = {k: value for k, value in settings.confs if k not in _OWN}
    confs |= {TIME_ZONE: settings.time_zone, ANSI: str(settings.ansi).lower()}
    if pool:
        confs[POOL] = pool
    if is_users(pool):
        confs[_CACHED] = "true"
    if is_users(pool) or pool == READING_POOL:
        confs[_GUARDED] = json.dumps([*paths])
    if marker is not None and marker.guarded:
        confs[_APPLICATION] = marker.application
        confs[_VERSION] = str(marker.version)
    if marker is not None:
        confs[_USER_METADATA] = user_metadata(marker)
    return confs


def user_metadata(marker: TransactionMarker) -> str:
    """Return the note for a commit with this marker: SQL can read the note, not the marker."""
    return f"haproc:{marker.application}:{marker.version}"


_NOTE: Final = re.compile("haproc:(.*):([0-9]+)", re.DOTALL)


def mark_in(note: str) -> tuple[str, int] | None:
    """Return application and version of the transaction marker that a commit's note names.

    None if the note names no marker.
    """
    found = _NOTE.fullmatch(note)
    return None if found is None else (found[1], int(found[2]))


def version_in(note: str, application: str) -> int | None:
    """Return the version of the marker in a commit's note; None if it is not of ``application``."""
    marker = mark_in(note)
    return marker[1] if marker is not None and marker[0] == application else None


def change(in_force: InForce, want: Mapping[str, str]) -> Change:
    """Return the changes that give a session exactly the settings ``want``."""
    known = in_force.confs
    sets = tuple((k, v) for k, v in sorted(want.items()) if known is None or known.get(k) != v)
    stale = in_force.possible if known is None else known.keys()
    return Change(sets, tuple(sorted(key for key in stale if key not in want)))


def resolved(wanted_change: Change, defaults: Mapping[str, str | None]) -> Change:
    """Return the change with the server's default, if it has one, for each setting to unset."""
    back = {key: defaults.get(key) for key in wanted_change.unsets}
    return Change(
        wanted_change.sets,
        tuple(key for key, value in back.items() if value is None),
        tuple((key, value) for key, value in back.items() if value is not None),
    )


def unknown_after(in_force: InForce, attempted: Change) -> InForce:
    """Return what is known of a session's settings when the outcome of a change is unknown."""
    known = in_force.confs.keys() if in_force.confs is not None else frozenset()
    return InForce(
        None, in_force.possible | frozenset(known) | frozenset(key for key, _ in attempted.sets)
    )


def use_statement(settings: Settings) -> str:
    """Return the USE statement for the catalog and schema in ``settings``."""
    return f"USE {quoted(settings.catalog)}.{quoted_path(settings.schema)}"


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def parts_of(name: str) -> list[str]:
    """Return the parts of a full name, without the backquotes that operations may have."""
    found = _PART.findall(name)
    return [p[1:-1].replace("``", "`") if p.startswith("`") else p for p in found]


def quoted_name(name: str) -> str:
    """Return a full name as SQL has it, with each part in backquotes."""
    return ".".join(quoted(part) for part in parts_of(name))


def quoted_path(path: str) -> str:
    """Return a schema's name as SQL, each of its levels in backquotes; dots separate the levels."""
    return ".".join(quoted(part) for part in path.split("."))
