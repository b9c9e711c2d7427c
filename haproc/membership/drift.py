"""Finds differences between the settings of the ring's Spark servers.

Two servers with other versions or settings may compute different rows for one statement. So every
HAProc reports its server's versions and all settings of Spark SQL and of Delta, except those that
are known not to matter. This includes settings that nobody has thought of.

If a report has None for a setting, the setting has no value on that server. If a report does not
name it, it was not looked up there: it may have a default. So each HAProc looks up all names that
any other reports, and compares a setting once both have looked it up.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from haproc.engine.interface import SETTINGS_OF_RESULTS, VERSION

Values: TypeAlias = Mapping[str, str | None]
"""By setting, what a server reports: the value itself, a digest of it, or None if it is not set."""

DEFAULTS: Final = "haproc.session_defaults"
"""The name under which a HAProc reports the configured settings of new sessions."""
NAMES_MAX: Final = 4000
"""The most settings in a report. Chosen: Spark 4.2 and Delta 4.4 know 1,500 settings between
them."""
_NAME_LENGTH_MAX: Final = 300
_HARMLESS: Final = re.compile(
    r"""spark\.(
    # Where things lie, and what is shown or logged.
    sql\.(warehouse\.dir|catalog\.[^.]+\.(warehouse|uri|url)|hive\.metastore\.jars(\.path)?
        |streaming\.checkpointLocation|(streaming\.|thriftserver\.)?ui\..*|redaction\..*
        |debug\.maxToStringFields|maxPlanStringLength|planChangeLog\..*)
    # How much is done at once. Statements whose results hang on that are not sent as they are.
    |sql\.(shuffle\.partitions|adaptive\..*|autoBroadcastJoinThreshold|broadcastTimeout
        |inMemoryColumnarStorage\..*|files\.(maxPartitionBytes|openCostInBytes|(min|max)PartitionNum)
        |sources\.parallelPartitionDiscovery\..*|artifact\..*|codegen\.cache\..*)
    |databricks\.delta\.(snapshotPartitions|snapshotCache\..*)
    # Credentials: never reported.
    |.*(secret|password|passwd|credential|token|(access|account|private)[._-]?key)
    |.*\.(secret|password|credential|oauth2?|sas)\..*
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_OF_CATALOG: Final = re.compile(r"spark\.sql\.catalog\.[^.]+\..+")
_PLAIN: Final = re.compile(r"(?!.*://)[\w.,:;+*%/ ()-]{0,200}")
"""Values that are reported as they are. Others, such as URLs with a user, are reported as
digests."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A setting that every server must have at one of ``values``: lower case; None: not set."""

    name: str
    values: tuple[str | None, ...]
    reason: str


REQUIRED: Final = (
    Requirement(
        "spark.sql.filesourceTableRelationCacheSize",
        ("0",),
        "else a session goes on reading a table of files as it was when it first read it",
    ),
    Requirement(
        "spark.databricks.delta.schema.autoMerge.enabled",
        ("false", None),
        "else an INSERT may change its table's columns, which HAProc expects of DDL alone; "
        "a session may set it",
    ),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting whose value ``here`` differs from that on the clusters in ``there``."""

    name: str
    here: str | None
    there: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        """Return the difference as a line of the program's log."""
        there = ", ".join(f"{_text(value)} on {cluster}" for cluster, value in self.there)
        return f"{self.name} is {_text(self.here)} here, {there}"


@dataclass(frozen=True, slots=True)
class Unfit:
    """A setting of this server whose value violates its `Requirement`."""

    requirement: Requirement
    value: str | None

    def __str__(self) -> str:
        """Return the setting, and the value that it should have, as a line of the program's log."""
        wanted, why = _text(self.requirement.values[0]), self.requirement.reason
        return f"{self.requirement.name} is {_text(self.value)}, not {wanted}: {why}"


@dataclass(frozen=True, slots=True)
class Overridden:
    """A setting for which the server's own value differs from that of new sessions."""

    name: str
    own: str
    default: str

    def __str__(self) -> str:
        """Return both values as a line of the program's log."""
        return f"{self.name} is {self.own!r} there, {self.default!r} in sessions"


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a comparison of settings.

    ``unknown``: clusters without a report, because they are down or of an older version.
    """

    differences: tuple[Difference, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    unknown: tuple[str, ...] = ()
    overridden: tuple[Overridden, ...] = ()

    @property
    def counts(self) -> tuple[int, int]:
        """How many settings differ between clusters, and how many of this server are unfit."""
        return len(self.differences), len(self.unfit)


def overridden(values: Values, defaults: Mapping[str, str]) -> tuple[Overridden, ...]:
    """Return the settings whose value on the server (``values``) differs from that of new sessions.

    ``defaults``: the settings that HAProc gives to new sessions.
    """
    return tuple(
        Overridden(name, own, default)
        for name, default in sorted(defaults.items())
        if (own := values.get(name)) is not None and own.lower() != default.lower()
    )


def text_of(defaults: Mapping[str, str]) -> str:
    """Return the settings of new sessions as one text; equal settings give equal texts."""
    return "; ".join(f"{name}: {value}" for name, value in sorted(defaults.items()))


def as_reported(values: Values, key: str) -> dict[str, str | None]:
    """Return the values that matter, as they are sent to other HAProcs: plain, or as digests.

    ``key``: the ring's secret, with which digests are made.
    """
    return {
        name: value if value is None else _shown(name, value, key)
        for name, value in sorted(values.items())
        if _matters(name)
    }


def to_look_up(others: Iterable[Values]) -> list[str]:
    """Return the settings to look up on this server even if they are not set there.

    These are the required ones, and all that ``others`` report.
    """
    names = {requirement.name for requirement in REQUIRED}
    for reported in others:
        names.update(
            name for name in reported if name.startswith(SETTINGS_OF_RESULTS) and _matters(name)
        )
    return sorted(names)[:NAMES_MAX]


def compare(mine: Values, others: Mapping[str, Values | None]) -> Findings:
    """Compare this server's values with the other clusters' reports; None there: no report."""
    differences = []
    for name, here in mine.items():
        there = tuple(
            (cluster, reported[name])
            for cluster, reported in others.items()
            if reported and name in reported and reported[name] != here
        )
        if there:
            differences.append(Difference(name, here, there))
    unfit = (
        Unfit(requirement, mine[requirement.name])
        for requirement in REQUIRED
        if requirement.name in mine and not _fits(requirement, mine[requirement.name])
    )
    unknown = tuple(cluster for cluster, reported in others.items() if not reported)
    return Findings(tuple(differences), tuple(unfit), unknown)


def read(body: Mapping[str, Any]) -> Values | None:
    """Return the values in a peer's answer ``body``; None if they are not valid."""
    reported = body.get("settings")
    if not isinstance(reported, dict) or not 0 < len(reported) <= NAMES_MAX:
        return None
    if not all(
        isinstance(name, str)
        and len(name) <= _NAME_LENGTH_MAX
        and (value is None or isinstance(value, str))
        for name, value in reported.items()
    ):
        return None
    return reported


def _matters(name: str) -> bool:
    return len(name) <= _NAME_LENGTH_MAX and _HARMLESS.fullmatch(name) is None


def _shown(name: str, value: str, key: str) -> str:
    if name.startswith(VERSION) or (_PLAIN.fullmatch(value) and not _OF_CATALOG.fullmatch(name)):
        return value
    keyed = f"haproc setting\0{name}\0{value}".encode()
    return "digest=" + hmac.digest(key.encode(), keyed, "sha256").hex()[:16]


def _fits(requirement: Requirement, value: str | None) -> bool:
    return (value.lower() if value is not None else None) in requirement.values


def _text(value: str | None) -> str:
    return "not set" if value is None else repr(value)
