"""Tests of the settings that sessions begin with: loading, checks, unsetting, comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from haproc.classify.model import Kind
from haproc.config.load import load_text
from haproc.config.model import Config
from haproc.config.tree import ConfigError
from haproc.engine.confs import wanted
from haproc.engine.interface import Settings
from haproc.membership import drift
from haproc.sessions.journal import settings_after, with_confs
from tests.unit.test_config_load import BASE, ENVIRON

GIVEN = """
session_defaults:
  spark.sql.session.timeZone: Europe/Berlin
  spark.sql.ansi.enabled: false
  spark.sql.shuffle.partitions: 8
"""
DEFAULTS = Settings(
    time_zone="Europe/Berlin", ansi=False, confs=(("spark.sql.shuffle.partitions", "8"),)
)


def read(text: str) -> Config:
    return load_text(f"{BASE}{text}", Path("/etc/haproc/ring.yaml"), ENVIRON)


def test_session_begins_with_the_configured_settings() -> None:
    assert read(GIVEN).defaults == DEFAULTS
    assert read("").defaults == Settings()
    assert read("time_zone: Asia/Tokyo").defaults == Settings(time_zone="Asia/Tokyo")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("spark.sql.ansi.enabled: maybe", "must be true or false"),
        ("spark.sql.ANSI.enabled: true", "Spark spells it spark.sql.ansi.enabled"),
        ("spark.sql.session.timeZone: Moon/Base", "Moon/Base"),
        ("spark.sql.sources.default: parquet", "it does not go with each write: write USING delta"),
        ("spark.scheduler.pool: fast", "pool of their own"),
        ("spark.sql.shuffle.partitions: [8]", "text, a number, true or false"),
    ],
)
def test_setting_that_cannot_be_a_session_default_is_refused_at_start(line: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"session_defaults:\n  {line}")
    assert why in str(refused.value) and "session_defaults" in str(refused.value)


def test_two_time_zones_in_the_configuration_are_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        read(f"time_zone: Asia/Tokyo{GIVEN}")


def test_unset_setting_returns_to_the_session_default() -> None:
    name = "spark.sql.shuffle.partitions"
    changed, _ = with_confs(DEFAULTS, (), ((name, "3"),), (), DEFAULTS)
    assert dict(changed.confs)[name] == "3"
    assert with_confs(changed, (), (), (name,), DEFAULTS)[0] == DEFAULTS
    for sql in ("RESET", f"RESET {name}"):
        found = settings_after(changed, changed, Kind.RESET, sql, [], DEFAULTS)
        assert found == DEFAULTS, sql


def test_session_defaults_are_compared_between_clusters_and_with_their_spark() -> None:
    mine, theirs = wanted(DEFAULTS, None), wanted(Settings(), None)
    own = drift.as_reported({drift.DEFAULTS: drift.text_of(mine)}, "key")
    other = drift.as_reported({drift.DEFAULTS: drift.text_of(theirs)}, "key")
    found = drift.compare(own, {"b": other, "older": {"spark.sql.x": "1"}})
    assert [each.name for each in found.differences] == [drift.DEFAULTS]
    spark = {"spark.sql.session.timeZone": "Etc/UTC", "spark.sql.ansi.enabled": "FALSE"}
    assert drift.overridden(spark, mine) == (
        drift.Overridden("spark.sql.session.timeZone", "Etc/UTC", "Europe/Berlin"),
    )
