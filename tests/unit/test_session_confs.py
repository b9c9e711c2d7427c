"""What a session's settings are after some were given by name."""

from __future__ import annotations

import pytest

from haproc.engine.interface import Settings
from haproc.sessions.confs import with_confs

DEFAULTS = Settings(time_zone="UTC")
ANSI, ZONE = "spark.sql.ansi.enabled", "spark.sql.session.timeZone"


def test_time_zone_and_ansi_mode_are_set_and_go_back_to_the_rings() -> None:
    changed, _ = with_confs(DEFAULTS, (), ((ANSI, "False"), (ZONE, "Asia/Tokyo")), (), DEFAULTS)
    assert (changed.ansi, changed.time_zone, changed.confs) == (False, "Asia/Tokyo", ())
    back, _ = with_confs(changed, (), (), (ANSI, ZONE), DEFAULTS)
    assert back == DEFAULTS


@pytest.mark.parametrize("name", [ANSI, ZONE])
def test_name_that_is_spelt_otherwise_means_as_little_as_to_spark(name: str) -> None:
    """Else its writes ran under it on every cluster, and its queries did not."""
    changed, _ = with_confs(DEFAULTS, (), ((name.upper(), "false"),), (), DEFAULTS)
    assert changed == DEFAULTS
