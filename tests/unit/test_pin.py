"""Tests of the moment that a statement's clock values get, in the time zone of its session."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from haproc.classify.model import RefusedError
from haproc.pin.literals import Moment, clock_literal, zone_of

NOW = datetime(2026, 3, 1, 23, 30, 0, 123456, UTC)


@pytest.mark.parametrize(
    ("name", "offset_hours"),
    [("UTC", 0), ("Z", 0), ("+02:00", 2), ("-2", -2), ("UTC+1", 1), ("GMT-01:00", -1)],
)
def test_zone_of_any_spelling_has_its_offset(name: str, offset_hours: int) -> None:
    offset = NOW.astimezone(zone_of(name)).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == offset_hours * 3600


def test_zone_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(RefusedError, match="Nowhere"):
        zone_of("Nowhere/City")


def test_wall_time_that_occurs_twice_keeps_its_offset() -> None:
    autumn = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    moment = Moment(autumn, "Europe/Berlin", "ann", "spark_catalog", "s")
    assert clock_literal("now", moment) == "TIMESTAMP '2026-10-25 02:30:00+01:00'"
