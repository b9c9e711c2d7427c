"""Settings of sessions: the pool of Spark's scheduler, and what a lane must change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from haproc.engine.interface import Settings, TransactionMarker

# The pools of Spark's scheduler: which one what HAProc has a cluster run is in.


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
    """True if a pool belongs to a user's queries."""
    return pool.startswith(_USERS)


def pool_of_lane(index: int) -> str:
    """Return the pool of the writes that a lane applies.

    Each lane has its own, so no write waits for the tasks of a longer one that another lane runs.
    """
    return f"lane/{index}"


def pool_of_rows(user: str) -> str:
    """Return the pool of the queries that compute the rows of a user's writes."""
    return f"rows/{user}"


# Which session settings a lane must change before a statement, from what is in force.
#
# A lane's statements each come with all settings that change their meaning. What the statement
# before had and this one lacks goes back to the server's default: a mark by taking it away, any
# other setting by setting the value that an untouched session has (unsetting would bring back
# Spark's built-in default, whatever the server was configured with). After a call that failed
# half-way it is unknown what is in force: then all is set anew, and whatever may have been set is
# taken back.


_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
TIME_ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
_CACHED = "spark.sql.haproc.cached"
"""By this a session finds what clients cached: haproc/spark/CacheIdentity.java."""
_GUARDED = "spark.sql.haproc.guarded"
"""By this a session changes nothing but itself: haproc/spark/Guard.java. It names the files, by the
beginnings of their paths, that statements may name: haproc/spark/Files.java."""
_APPLICATION = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
MARKER_CONFS = (_APPLICATION, _VERSION, _USER_METADATA)
_OWN = frozenset({*MARKER_CONFS, POOL, _CACHED, _GUARDED})


@dataclass(frozen=True, slots=True)
class Change:
    """Settings to set and names to take back; all may be empty.

    ``resets`` is set like ``sets``, but a refusal is ignored: it may name what was refused before.
    """

    sets: tuple[tuple[str, str], ...] = ()
    unsets: tuple[str, ...] = ()
    resets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class InForce:
    """The settings that a session has been given so far.

    ``confs`` is None while that is unknown; ``possible`` names all that may have been set.
    """

    confs: Mapping[str, str] | None = None
    possible: frozenset[str] = field(default_factory=frozenset)


def wanted(
    settings: Settings, marker: TransactionMarker | None, pool: str = "", paths: Sequence[str] = ()
) -> dict[str, str]:
    """Return all settings, by their names in Spark, that a statement runs under.

    Whatever pool its client chose counts for nothing: it would be a way to more of the cluster than
    a user's share. Only a session in a user's pool finds what users cached. ``paths``: below which
    a guarded session's statements may name files.
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
    """Return the note that a commit carries beside its mark, which SQL cannot read back."""
    return f"haproc:{marker.application}:{marker.version}"


def version_in(note: str, application: str) -> int | None:
    """Return the mark version in a commit's note, if this application wrote it."""
    prefix = f"haproc:{application}:"
    version = note.removeprefix(prefix)
    return int(version) if note.startswith(prefix) and version.isdecimal() else None


_NOTE: Final = re.compile("haproc:(.+):([0-9]+)")


def mark_in(note: str) -> tuple[str, int] | None:
    """Return the application and the version of the mark that a commit's note tells, if any."""
    if (found := _NOTE.fullmatch(note)) is None:
        return None
    return found[1], int(found[2])


def change(in_force: InForce, want: Mapping[str, str]) -> Change:
    """Return the changes after which exactly the wanted settings are in force."""
    known = in_force.confs
    sets = tuple((k, v) for k, v in sorted(want.items()) if known is None or known.get(k) != v)
    stale = in_force.possible if known is None else known.keys()
    return Change(sets, tuple(sorted(key for key in stale if key not in want)))


def resolved(wanted_change: Change, defaults: Mapping[str, str | None]) -> Change:
    """Return the change with each setting to be taken back set to the server's default instead."""
    back = {key: defaults.get(key) for key in wanted_change.unsets}
    return Change(
        wanted_change.sets,
        tuple(key for key, value in back.items() if value is None),
        tuple((key, value) for key, value in back.items() if value is not None),
    )


def unknown_after(in_force: InForce, attempted: Change) -> InForce:
    """Return the settings in force after a change that may or may not have been made."""
    known = in_force.confs.keys() if in_force.confs is not None else frozenset()
    return InForce(
        None, in_force.possible | frozenset(known) | frozenset(key for key, _ in attempted.sets)
    )


def use_statement(settings: Settings) -> str:
    """Return the statement that makes the settings' catalog and schema the current ones."""
    return f"USE {quoted(settings.catalog)}.{quoted_path(settings.schema)}"


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def parts_of(name: str) -> list[str]:
    """Return the parts of an operation's full name of something, as plain text."""
    found = _PART.findall(name)
    return [p[1:-1].replace("``", "`") if p.startswith("`") else p for p in found]


def quoted_name(name: str) -> str:
    """Return an operation's full name of something as SQL."""
    return ".".join(quoted(part) for part in parts_of(name))


def quoted_path(path: str) -> str:
    """Return a schema's name quoted; one with several levels is written with dots."""
    return ".".join(quoted(part) for part in path.split("."))
