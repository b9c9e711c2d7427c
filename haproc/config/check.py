"""Finds settings that contradict each other although each key can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from cronsim import CronSim, CronSimError

from haproc.classify.allowed import place_of
from haproc.classify.model import RefusedError
from haproc.classify.session_settings import instead, travels
from haproc.config.jobs import Isolation, Jobs
from haproc.config.model import LANES_MAX, Address, Config
from haproc.config.sections import (
    ENVELOPE_BYTES,
    check_oidc,
    check_users,
    is_client_url,
    is_loopback,
    is_wildcard,
)
from haproc.config.services import check_kafka, check_redis
from haproc.config.shares import user_max
from haproc.config.tls import check_tls
from haproc.config.tree import Finding
from haproc.engine.confs import ANSI, POOL, TIME_ZONE
from haproc.pin.literals import zone_of

# Contradictions in the settings with which sessions begin.


_UTC: Final = "UTC"


def check_defaults(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key's path, message) for each default setting of sessions that cannot be used."""
    zone = dict(config.session_defaults).get(TIME_ZONE)
    if zone is not None and config.time_zone not in (_UTC, zone):
        yield "time_zone", f"session_defaults has another {TIME_ZONE}: leave one of them out"
    if zone is None:
        yield from _zone("time_zone", config.time_zone)
    for name, value in config.session_defaults:
        path = f"session_defaults.{name}"
        spelt = next((each for each in (TIME_ZONE, ANSI) if each.lower() == name.lower()), name)
        if name == POOL:
            yield path, "each user's queries have a pool of their own"
        elif not travels(name):
            yield path, f"it does not go with each write: {instead(name)}"
        elif name != spelt:
            yield path, f"Spark spells it {spelt}"
        elif name == ANSI and value not in ("true", "false"):
            yield path, f"must be true or false, not {value!r}"
        elif name == TIME_ZONE:
            yield from _zone(path, value)


def _zone(path: str, name: str) -> Iterator[tuple[str, str]]:
    try:
        zone_of(name)
    except RefusedError as error:
        yield path, error.message


# Contradictions between settings that can be read. Values in, findings out.
#
# Each rule prevents a ring that would start and then misbehave: two HAProcs on one port, one Spark
# counted as two replicas, a log that other processes cannot see, an open door to the network.


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CLUSTERS_MAX = 64
LIMITS_IN_ORDER: Final = (
    ("staged_bytes_max", "spooled_bytes_max"),
    ("operation_bytes_max", "staged_bytes_max"),
    ("batch_bytes_max", "operation_bytes_max"),
    ("part_bytes_max", "operation_bytes_max"),
    ("batch_arrow_bytes_max", "operation_bytes_max"),
    ("batch_bytes_max", "look_ahead_bytes_max"),
    ("batch_arrow_bytes_max", "look_ahead_bytes_max"),
    ("look_ahead_records_max", "window_records"),
    ("batch_operations_max", "look_ahead_records_max"),
    ("inline_bytes_max", "results_kept_bytes_max"),
)
"""Pairs of keys in ``limits``: the first must not be more than the second. A pair comes after the
pairs that bound its second."""
_JOBS_KEPT_MIN_S = 3600.0
_PASSWORD = re.compile(r"[^/]*//[^/@]*:[^/@]*@")
_WINDOW_INTERVALS_MAX = 1000
"""The most intervals in the window of heartbeats: it is checked several times a second, interval by
interval."""


def check(config: Config) -> list[Finding]:
    """Return all contradictions in a configuration; empty if it can be used."""
    return [
        *_names(config),
        *_addresses(config),
        *_log(config),
        *check_kafka(config),
        *_access(config),
        *_paths(config),
        *_storage(config),
        *_limits(config),
        *_timeouts(config),
        *_membership(config),
        *_writes(config),
        *_archive(config),
        *check_redis(config),
        *check_tls(config.tls),
        *_spark(config),
        *check_defaults(config),
        *_jobs(config),
    ]


def _names(config: Config) -> Iterator[Finding]:
    named = [("ring", config.ring)]
    named += [(f"clusters[{i}].name", c.name) for i, c in enumerate(config.clusters)]
    named += [(f"users[{i}].name", u.name) for i, u in enumerate(config.users)]
    for path, name in named:
        if not NAME.fullmatch(name):
            yield path, f"{name!r} must be 1 to 63 letters, digits, '.', '_' or '-'"
    if not 1 <= len(config.clusters) <= _CLUSTERS_MAX:
        yield "clusters", f"a ring has 1 to {_CLUSTERS_MAX} clusters, not {len(config.clusters)}"
    yield from _twice([(path, name) for path, name in named if path.startswith("clusters")])
    yield from _twice([(path, name) for path, name in named if path.startswith("users")])


def _archive(config: Config) -> Iterator[Finding]:
    user, names = config.archive.user, {user.name for user in config.users} or {"anonymous"}
    if user is not None and user not in names and not config.oidc.issuer:
        yield "archive.user", f"{user!r} is none of {', '.join(sorted(names))}"
    if user is None and config.archive.holds_trimming:
        yield "archive.holds_trimming", "the log would grow for ever: archive.user is not set"


def _paths(config: Config) -> Iterator[Finding]:
    for index, prefix in enumerate(config.paths):
        if place_of(prefix) is None or "*" in prefix or "?" in prefix:
            yield f"paths[{index}]", f"{prefix!r} is no absolute path, such as /data or s3a://b/in"


def _storage(config: Config) -> Iterator[Finding]:
    for index, cluster in enumerate(config.clusters):
        for prefix, target in cluster.storage:
            path = f"clusters[{index}].storage.{prefix}"
            for each in (prefix, target):
                if place_of(f"{each}/") is None or "*" in each or "?" in each:
                    yield path, f"{each!r} is no absolute path, such as file:/data or s3a://b/in"
                elif _PASSWORD.match(each):
                    yield path, "a password must not stand in a path: give it to Spark"


def _twice(values: list[Finding]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for path, value in values:
        first = seen.setdefault(value, path)
        if first != path:
            yield path, f"{value} is already used by {first}"


def _addresses(config: Config) -> Iterator[Finding]:
    listeners: list[tuple[str, Address]] = []
    sparks: list[Finding] = []
    for index, cluster in enumerate(config.clusters):
        path = f"clusters[{index}]"
        listeners += [(f"{path}.listen", cluster.listen), (f"{path}.peer", cluster.peer)]
        if cluster.connect is not None:
            listeners.append((f"{path}.connect", cluster.connect))
        sparks.append((f"{path}.spark.url", f"{_host(cluster.spark.host)}:{cluster.spark.port}"))
        if is_wildcard(cluster.peer.host):
            yield (
                f"{path}.peer",
                f"the other HAProcs cannot connect to {cluster.peer.host}: name this host",
            )
        if cluster.advertise is not None and not is_client_url(cluster.advertise):
            yield (
                f"{path}.advertise",
                f"{cluster.advertise!r} is not a URL that clients can connect to, such as "
                "http://host:8080",
            )
        if is_wildcard(cluster.spark.host):
            yield f"{path}.spark.url", f"nobody can connect to {cluster.spark.host}"
    yield from _twice([*((path, f"{_host(at.host)}:{at.port}") for path, at in listeners), *sparks])
    urls = enumerate(cluster.advertise for cluster in config.clusters)
    yield from _twice([(f"clusters[{at}].advertise", url) for at, url in urls if url is not None])


def _spark(config: Config) -> Iterator[Finding]:
    for index, cluster in enumerate(config.clusters):
        if cluster.spark.ca_file is not None and not cluster.spark.tls:
            yield (
                f"clusters[{index}].spark.ca_file",
                "has no effect without TLS: url with ;use_ssl=true",
            )


def _jobs(config: Config) -> Iterator[Finding]:
    if not config.jobs.enabled:
        return
    for index, cluster in enumerate(config.clusters):
        if cluster.connect is None:
            yield f"clusters[{index}].connect", "jobs.enabled needs a Spark Connect door"
    yield from _isolation(config.jobs)
    yield from _schedules(config)
    if config.jobs.kept_s < _JOBS_KEPT_MIN_S:
        yield (
            "jobs.kept_s",
            f"{config.jobs.kept_s:g} is less than {_JOBS_KEPT_MIN_S:g}: a repeated request would "
            "run its job again",
        )


def _isolation(jobs: Jobs) -> Iterator[Finding]:
    named = jobs.user is not None
    if jobs.isolation is Isolation.USER and not named:
        yield "jobs.user", "name the user as whom programs run (jobs.isolation is user)"
    if jobs.isolation is Isolation.NONE and named:
        yield "jobs.user", "programs run as HAProc itself, since jobs.isolation is none"


def _schedules(config: Config) -> Iterator[Finding]:
    users = {user.name for user in config.users}
    named: list[Finding] = []
    for index, schedule in enumerate(config.jobs.schedules):
        path = f"jobs.schedules[{index}]"
        named.append((f"{path}.name", schedule.name))
        if not NAME.fullmatch(schedule.name):
            yield f"{path}.name", "must be 1 to 63 letters, digits, '.', '_' or '-'"
        if (schedule.every_s is None) == (schedule.cron is None):
            yield path, "set either every_s or cron"
        if schedule.every_s is not None and schedule.every_s < 1:
            yield f"{path}.every_s", "must be at least 1"
        if schedule.cron is not None:
            try:
                CronSim(schedule.cron, datetime(2000, 1, 1, tzinfo=UTC))
            except CronSimError as error:
                yield f"{path}.cron", f"{schedule.cron!r} is no cron expression: {error}"
        if config.authenticates and schedule.user not in users:
            known = ", ".join(sorted(users)) or "there is none yet (a provider's do not count)"
            yield f"{path}.user", f"must be one of users: {known}"
        if (schedule.restarts or 0) > config.jobs.restarts_max:
            yield f"{path}.restarts", "is more than jobs.restarts_max"
    yield from _twice(named)


def _host(host: str) -> str:
    """Return ``localhost`` for every name of this machine and for a wildcard, else the host.

    So two addresses of one machine can be compared.
    """
    return "localhost" if is_loopback(host) or is_wildcard(host) else host.lower()


def _log(config: Config) -> Iterator[Finding]:
    if config.log == "memory:":
        if len(config.clusters) > 1:
            yield (
                "log",
                "memory: is seen by one process only, but each cluster has its own HAProc "
                "process; use sqlite:///path",
            )
    elif config.log.startswith("sqlite:///"):
        hosts = sorted({_host(cluster.peer.host) for cluster in config.clusters})
        if len(hosts) > 1:
            yield (
                "log",
                f"an SQLite file serves the processes of one machine, but the HAProcs are on "
                f"{', '.join(hosts)}",
            )
    elif not config.log.startswith("kafka:"):
        kind = config.log.split(":", 1)[0]
        known = "sqlite:///path, kafka://host:port/RING and memory:"
        yield "log", f"unknown kind of log {kind!r}; known are {known}"


def _access(config: Config) -> Iterator[Finding]:
    if config.authenticates and config.allow_anonymous:
        yield "allow_anonymous", "contradicts users: with users there is no anonymous access"
    for index, cluster in enumerate(config.clusters):
        for key, door in (("listen", cluster.listen), ("connect", cluster.connect)):
            if door is None or is_loopback(door.host):
                continue
            if not config.authenticates and not config.allow_anonymous:
                yield (
                    f"clusters[{index}].{key}",
                    f"{door.host} is reached from outside this machine: configure users, "
                    "or say allow_anonymous: true",
                )
    yield from check_users(config.users, config.secret)
    yield from check_oidc(config.oidc)


def _in_order(section: str, values: object, *pairs: tuple[str, str]) -> Iterator[Finding]:
    """Yield a finding for each pair of keys whose first value is more than its second.

    ``section``: the section of the keys; ``values``: the object with their values.
    """
    for smaller, larger in pairs:
        low, high = getattr(values, smaller), getattr(values, larger)
        if low > high:
            yield (
                f"{section}.{smaller}",
                f"{low:.15g} is more than {section}.{larger} ({high:.15g})",
            )


def _limits(config: Config) -> Iterator[Finding]:
    limits = config.limits
    if limits.lanes > LANES_MAX:
        yield "limits.lanes", f"must be at most {LANES_MAX}, not {limits.lanes}"
    yield from _in_order("limits", limits, *LIMITS_IN_ORDER)
    if not 0 < limits.user_share <= 1:
        yield "limits.user_share", f"must be above 0 and at most 1, not {limits.user_share:g}"
    elif user_max(limits.requests_bytes_max, config) < limits.operation_bytes_max + ENVELOPE_BYTES:
        yield (
            "limits.requests_bytes_max",
            f"a user's share of {limits.requests_bytes_max} must be more than "
            f"limits.operation_bytes_max ({limits.operation_bytes_max}) by {ENVELOPE_BYTES}",
        )


def _timeouts(config: Config) -> Iterator[Finding]:
    timeouts = config.timeouts
    yield from _in_order(
        "timeouts",
        timeouts,
        ("retry_first_s", "retry_max_s"),
        ("peer_s", "fanout_s"),
        ("append_s", "statement_s"),
    )
    wait_s, whole_s = config.reads.wait_s, timeouts.statement_s
    if wait_s > whole_s:
        yield "reads.wait_s", f"{wait_s:g} is more than timeouts.statement_s ({whole_s:g})"


def _membership(config: Config) -> Iterator[Finding]:
    rules = config.membership
    yield from _in_order(
        "membership",
        rules,
        ("heartbeat_interval_s", "window_s"),
        ("heartbeat_interval_s", "report_interval_s"),
        ("check_interval_s", "window_s"),
    )
    intervals = rules.window_s / rules.heartbeat_interval_s
    if intervals > _WINDOW_INTERVALS_MAX:
        yield (
            "membership.window_s",
            f"{rules.window_s:g} holds more than {_WINDOW_INTERVALS_MAX} intervals of "
            f"membership.heartbeat_interval_s ({rules.heartbeat_interval_s:g})",
        )
    for key in ("missed_in_a_row", "received_in_a_row"):
        if getattr(rules, key) > intervals + 1e-6:
            yield (
                f"membership.{key}",
                f"{getattr(rules, key)} intervals of membership.heartbeat_interval_s "
                f"({rules.heartbeat_interval_s:g}) don't fit into membership.window_s "
                f"({rules.window_s:g})",
            )


def _writes(config: Config) -> Iterator[Finding]:
    low, clusters = config.writes.min_insync_clusters, len(config.clusters)
    if low > clusters:
        yield (
            "writes.min_insync_clusters",
            f"{low} clusters can never be in sync: the ring has {clusters}",
        )
