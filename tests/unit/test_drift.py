"""Spark settings that must be equal: the reported settings, the comparison, and its report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

import pytest

from dmq import Json
from haproc.engine.errors import EngineError, ErrorKind
from haproc.membership import drift
from haproc.membership.drift import Difference, as_reported, compare, read, to_look_up
from haproc.membership.peers import PeerUnavailableError
from haproc.metrics import Metrics
from haproc.node.status import DriftWatch

KEY = "ring-secret"
CACHE = "spark.sql.filesourceTableRelationCacheSize"
MERGE = "spark.databricks.delta.schema.autoMerge.enabled"
FIT = {"version.spark": "4.2.1 61", "version.delta": "4.4.0", CACHE: "0", MERGE: "false"}


def test_compare_of_equal_servers_finds_nothing() -> None:
    assert compare(FIT, {"b": FIT, "c": dict(FIT)}) == drift.Findings()


def test_compare_reports_differing_version_and_setting_with_their_clusters() -> None:
    other = {**FIT, "version.delta": "4.3.0", "spark.sql.ansi.enabled": "false"}
    found = compare({**FIT, "spark.sql.ansi.enabled": "true"}, {"b": other, "c": FIT})
    assert found.differences == (
        Difference("version.delta", "4.4.0", (("b", "4.3.0"),)),
        Difference("spark.sql.ansi.enabled", "true", (("b", "false"),)),
    )
    assert str(found.differences[1]) == "spark.sql.ansi.enabled is 'true' here, 'false' on b"


def test_compare_reports_an_unset_setting_but_not_one_that_was_not_looked_up() -> None:
    mine = {**FIT, "spark.sql.new": "1"}
    assert compare(mine, {"b": FIT}).differences == ()
    found = compare(mine, {"b": {**FIT, "spark.sql.new": None}})
    assert [str(each) for each in found.differences] == ["spark.sql.new is '1' here, not set on b"]


def test_compare_lists_a_cluster_without_answer_as_unknown() -> None:
    found = compare(FIT, {"b": None, "c": FIT})
    assert (found.differences, found.unknown) == ((), ("b",))


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [(CACHE, "1000", False), (CACHE, None, False), (MERGE, "True", False), (MERGE, None, True)],
)
def test_compare_reports_a_wrong_required_setting_as_unfit(
    name: str, value: str | None, fits: bool
) -> None:
    unfit = compare({**FIT, name: value}, {}).unfit
    assert [each.requirement.name for each in unfit] == ([] if fits else [name])


HARMLESS = (
    "spark.sql.warehouse.dir",
    "spark.sql.catalog.lake.uri",
    "spark.sql.adaptive.enabled",
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.catalog.lake.token",
    "spark.sql.catalog.lake.s3.secret-access-key",
    "spark.sql.hive.PASSWORD",
)


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_settings_and_credentials_are_not_reported(name: str) -> None:
    assert as_reported({name: "x", "spark.sql.ansi.enabled": "true"}, KEY) == {
        "spark.sql.ansi.enabled": "true"
    }
    assert name not in to_look_up([{name: "x"}])


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.nobody.knows.this",
        "spark.sql.adaptively",
        "spark.sql.warehouse.dir.other",
        "spark.databricks.delta.autoCompact.enabled",
        "spark.sql.catalog.lake",
        "spark.sql.tokenizer.enabled",
    ],
)
def test_unknown_setting_is_reported_and_looked_up(name: str) -> None:
    assert as_reported({name: "x"}, KEY) == {name: "x"}
    assert name in to_look_up([{name: "x"}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.some", "jdbc:x://ann:hidden@host/db"),
        ("spark.sql.some", "user=ann;hidden=1"),
        ("spark.sql.some", "hidden\n"),
        ("spark.sql.some", "hidden" * 100),
        ("spark.sql.catalog.lake.header.Authorization", "hidden"),
    ],
)
def test_value_that_may_contain_a_secret_is_reported_as_a_digest(name: str, value: str) -> None:
    reported = as_reported({name: value}, KEY)[name]
    assert reported is not None and reported.startswith("digest=") and "hidden" not in reported
    assert reported == as_reported({name: value}, KEY)[name]
    assert reported != as_reported({name: value + "x"}, KEY)[name]
    assert reported != as_reported({name: value}, "another")[name]


def test_lookup_covers_reported_settings_and_the_required_ones() -> None:
    reported = {"version.spark": "4", "spark.driver.memory": "1g", "spark.sql.x": None}
    assert to_look_up([reported]) == sorted([CACHE, MERGE, "spark.sql.x"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"settings": {}},
        {"settings": ["spark.sql.x"]},
        {"settings": {"spark.sql.x": 1}},
        {"settings": {"x" * 301: "1"}},
        {"settings": {f"spark.sql.x{n}": "1" for n in range(drift.NAMES_MAX + 1)}},
    ],
)
def test_read_of_an_invalid_answer_returns_none(body: dict[str, Json]) -> None:
    assert read(body) is None


# -- looking now and then --------------------------------------------------------------------


class Server:
    """A server with these settings; ``defaults`` are returned only for names in the request."""

    def __init__(self, **given: str) -> None:
        self.given: dict[str, str | None] = {**FIT, **given}
        self.defaults = {"spark.sql.x": "1"}
        self.up = True

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        if not self.up:
            raise EngineError(ErrorKind.AVAILABILITY, "down")
        return {**{name: self.defaults.get(name) for name in names}, **self.given}


class Ring:
    """HAProcs that query each other; those in ``without`` answer 404."""

    def __init__(self, **servers: Server) -> None:
        self.without: set[str] = set()
        self.down: set[str] = set()
        self.watches: dict[str, DriftWatch] = {}
        for name, server in servers.items():
            others = tuple(other for other in servers if other != name)
            up = asyncio.Event()
            self.watches[name] = DriftWatch(name, KEY, server, Side(self, others), up)

    async def look(self, rounds: int = 2) -> None:
        for _ in range(rounds):
            for watch in self.watches.values():
                await watch.look()


class Side:
    """The ring as one of its HAProcs queries it."""

    def __init__(self, ring: Ring, names: tuple[str, ...]) -> None:
        self._ring = ring
        self.names = names

    def is_gone(self, peer: str) -> bool:
        return peer in self._ring.down

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        if peer in self._ring.without:
            raise PeerUnavailableError(f"peer {peer} answered 404")
        return self._ring.watches[peer].settings()


async def test_watch_logs_a_difference_once_at_its_begin_and_once_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    b = Server(**{"spark.sql.x": "2"})
    ring = Ring(a=Server(), b=b)
    await ring.look(4)
    assert ring.watches["a"].describe() == {
        "differing": [{"name": "spark.sql.x", "clusters": ["b"]}],
        "differing_count": 1,
        "unfit": [],
        "unknown": [],
        "session_defaults": {},
        "overridden": [],
    }
    assert ring.watches["a"].findings.counts == (1, 0)
    b.given["spark.sql.x"] = "1"  # as it is by default where nobody gave it
    await ring.look(4)
    assert ring.watches["a"].findings == drift.Findings()
    assert [record.message for record in caplog.records if record.message.startswith("a:")] == [
        "a: settings that change results differ (1): spark.sql.x is '1' here, '2' on b",
        "a: no more: settings that change results differ",
    ]


async def test_watch_does_not_report_a_setting_equal_to_the_default_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = Ring(a=Server(), b=Server(**{"spark.sql.x": "1"}), c=Server())
    await ring.look(4)
    assert {watch.findings.counts for watch in ring.watches.values()} == {(0, 0)}
    assert caplog.records == []


async def test_watch_lists_an_older_haproc_and_one_that_is_down_as_unknown() -> None:
    ring = Ring(a=Server(), b=Server(**{"spark.sql.x": "2"}), c=Server(**{"spark.sql.x": "3"}))
    ring.without, ring.down = {"b"}, {"c"}
    await ring.look()
    assert ring.watches["a"].findings == drift.Findings(unknown=("b", "c"))
    ring.without = set()
    await ring.look()
    assert ring.watches["a"].findings.unknown == ("c",)
    assert ring.watches["a"].findings.counts == (1, 0)


async def test_watch_returns_the_last_settings_while_its_server_is_down() -> None:
    server = Server()
    ring = Ring(a=server, b=Server())
    assert ring.watches["a"].settings() == {"cluster": "a", "settings": {}}
    await ring.look()
    server.up = False
    with pytest.raises(EngineError):
        await ring.watches["a"].look()
    assert read(ring.watches["a"].settings()) == dict(sorted(FIT.items()))


def test_metrics_contain_the_counts_of_differing_and_unfit_settings() -> None:
    metrics = Metrics("ring", "a", ["READY"])
    metrics.settings(3, 1)
    text = metrics.text().decode()
    assert "haproc_settings_differing 3.0" in text
    assert "haproc_settings_unfit 1.0" in text


async def test_watch_logs_once_that_session_defaults_override_settings_of_spark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(**{"spark.sql.session.timeZone": "Europe/Berlin"})
    begins = {"spark.sql.session.timeZone": "UTC", "spark.sql.x": "1"}
    side = Side(Ring(), ())
    watch = DriftWatch("a", KEY, server, side, asyncio.Event(), begins)
    for _ in range(3):
        await watch.look()
    assert [record.message for record in caplog.records] == [
        "a: settings of its Spark count for nothing in sessions, which have session_defaults (1): "
        "spark.sql.session.timeZone is 'Europe/Berlin' there, 'UTC' in sessions"
    ]
    reported = watch.describe()
    assert reported["overridden"] == ["spark.sql.session.timeZone"]
    assert reported["session_defaults"] == begins
    reported_settings = read(watch.settings()) or {}
    assert (
        reported_settings["haproc.session_defaults"]
        == "spark.sql.session.timeZone: UTC; spark.sql.x: 1"
    )


async def test_watch_reports_a_cluster_with_other_session_defaults() -> None:
    ring = Ring(a=Server(), b=Server(), older=Server())
    for name in "ab":
        others = tuple(other for other in ring.watches if other != name)
        begins = {"spark.sql.ansi.enabled": str(name == "a").lower()}
        ring.watches[name] = DriftWatch(
            name, KEY, Server(), Side(ring, others), asyncio.Event(), begins
        )
    await ring.look()
    assert ring.watches["a"].describe()["differing"] == [
        {"name": "haproc.session_defaults", "clusters": ["b"]}
    ]
    assert ring.watches["older"].findings.differences == ()
