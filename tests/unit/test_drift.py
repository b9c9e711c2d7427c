"""Settings of Spark that must be equal: what is told, what is compared, what is said of it."""

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


def test_compare_equal_servers_differ_in_nothing() -> None:
    assert compare(FIT, {"b": FIT, "c": dict(FIT)}) == drift.Findings()


def test_compare_other_version_and_setting_are_named_with_who_has_them() -> None:
    other = {**FIT, "version.delta": "4.3.0", "spark.sql.ansi.enabled": "false"}
    found = compare({**FIT, "spark.sql.ansi.enabled": "true"}, {"b": other, "c": FIT})
    assert found.differences == (
        Difference("version.delta", "4.4.0", (("b", "4.3.0"),)),
        Difference("spark.sql.ansi.enabled", "true", (("b", "false"),)),
    )
    assert str(found.differences[1]) == "spark.sql.ansi.enabled is 'true' here, 'false' on b"


def test_compare_setting_that_a_server_lacks_differs_but_one_not_looked_up_does_not() -> None:
    mine = {**FIT, "spark.sql.new": "1"}
    assert compare(mine, {"b": FIT}).differences == ()
    found = compare(mine, {"b": {**FIT, "spark.sql.new": None}})
    assert [str(each) for each in found.differences] == ["spark.sql.new is '1' here, not set on b"]


def test_compare_cluster_that_tells_nothing_is_unknown_not_different() -> None:
    found = compare(FIT, {"b": None, "c": FIT})
    assert (found.differences, found.unknown) == ((), ("b",))


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [(CACHE, "1000", False), (CACHE, None, False), (MERGE, "True", False), (MERGE, None, True)],
)
def test_compare_required_value_that_is_missing_is_unfit(
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
def test_tellable_harmless_settings_and_credentials_stay_here(name: str) -> None:
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
def test_tellable_setting_that_is_not_known_is_told_and_looked_up(name: str) -> None:
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
def test_tellable_value_that_may_hold_a_secret_is_told_as_digest(name: str, value: str) -> None:
    told = as_reported({name: value}, KEY)[name]
    assert told is not None and told.startswith("digest=") and "hidden" not in told
    assert told == as_reported({name: value}, KEY)[name]
    assert told != as_reported({name: value + "x"}, KEY)[name]
    assert told != as_reported({name: value}, "another")[name]


def test_to_look_up_asks_for_settings_alone_and_always_for_the_required() -> None:
    told = {"version.spark": "4", "spark.driver.memory": "1g", "spark.sql.x": None}
    assert to_look_up([told]) == sorted([CACHE, MERGE, "spark.sql.x"])


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
def test_read_answer_that_is_none_tells_nothing(body: dict[str, Json]) -> None:
    assert read(body) is None


# -- looking now and then --------------------------------------------------------------------


class Server:
    """A server with these settings; ``defaults`` are told only to who names them."""

    def __init__(self, **given: str) -> None:
        self.given: dict[str, str | None] = {**FIT, **given}
        self.defaults = {"spark.sql.x": "1"}
        self.up = True

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        if not self.up:
            raise EngineError(ErrorKind.AVAILABILITY, "down")
        return {**{name: self.defaults.get(name) for name in names}, **self.given}


class Ring:
    """HAProcs that ask each other; one ``without`` the door answers 404."""

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
    """The ring as one of its HAProcs asks it."""

    def __init__(self, ring: Ring, names: tuple[str, ...]) -> None:
        self._ring = ring
        self.names = names

    def is_gone(self, peer: str) -> bool:
        return peer in self._ring.down

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        if peer in self._ring.without:
            raise PeerUnavailableError(f"peer {peer} answered 404")
        return self._ring.watches[peer].settings()


async def test_watch_names_what_differs_and_says_it_once_when_it_begins_and_ends(
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


async def test_watch_setting_given_as_it_is_by_default_never_counts_as_different(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = Ring(a=Server(), b=Server(**{"spark.sql.x": "1"}), c=Server())
    await ring.look(4)
    assert {watch.findings.counts for watch in ring.watches.values()} == {(0, 0)}
    assert caplog.records == []


async def test_watch_haproc_of_an_older_version_and_one_that_is_down_are_unknown() -> None:
    ring = Ring(a=Server(), b=Server(**{"spark.sql.x": "2"}), c=Server(**{"spark.sql.x": "3"}))
    ring.without, ring.down = {"b"}, {"c"}
    await ring.look()
    assert ring.watches["a"].findings == drift.Findings(unknown=("b", "c"))
    ring.without = set()
    await ring.look()
    assert ring.watches["a"].findings.unknown == ("c",)
    assert ring.watches["a"].findings.counts == (1, 0)


async def test_watch_tells_what_it_read_last_while_its_server_is_down() -> None:
    server = Server()
    ring = Ring(a=server, b=Server())
    assert ring.watches["a"].settings() == {"cluster": "a", "settings": {}}
    await ring.look()
    server.up = False
    with pytest.raises(EngineError):
        await ring.watches["a"].look()
    assert read(ring.watches["a"].settings()) == dict(sorted(FIT.items()))


def test_metrics_tell_how_many_settings_differ_and_are_unfit() -> None:
    metrics = Metrics("ring", "a", ["READY"])
    metrics.settings(3, 1)
    text = metrics.text().decode()
    assert "haproc_settings_differing 3.0" in text
    assert "haproc_settings_unfit 1.0" in text


async def test_watch_says_once_that_a_sparks_own_setting_counts_for_nothing_in_sessions(
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
    told = watch.describe()
    assert told["overridden"] == ["spark.sql.session.timeZone"]
    assert told["session_defaults"] == begins
    said = read(watch.settings()) or {}
    assert said["haproc.session_defaults"] == "spark.sql.session.timeZone: UTC; spark.sql.x: 1"


async def test_watch_names_a_cluster_whose_sessions_begin_with_other_settings() -> None:
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
