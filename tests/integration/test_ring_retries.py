"""Test of a real ring with a short idempotency window: late retries are refused, not applied."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest
import yaml

import haclient
from tests.rig import Rig

pytestmark = pytest.mark.spark
WINDOW = 24


@pytest.fixture
def ring_with_short_window(rig: Rig) -> Iterator[Rig]:
    """The ring with an idempotency window of a few offsets, for one test."""
    kept = rig.ring.file.read_text()
    changed = yaml.safe_load(kept)
    shorter = ("window_records", "look_ahead_records_max", "batch_operations_max")
    changed["limits"] = {**changed.get("limits", {}), **dict.fromkeys(shorter, WINDOW)}
    rig.settled()
    try:
        restarted(rig, yaml.safe_dump(changed))
        yield rig
        rig.settled()
    finally:
        restarted(rig, kept)


def restarted(rig: Rig, text: str) -> None:
    for name in rig.ring.names:
        asyncio.run(rig.ring.stop_haproc(name))
    rig.ring.file.write_text(text)
    rig.up()


@pytest.mark.thorough
def test_retry_beyond_the_window_is_refused_on_all_haprocs_and_after_a_restart(
    ring_with_short_window: Rig,
) -> None:
    rig = ring_with_short_window
    table = rig.table()
    began, request_id = time.monotonic(), uuid.uuid4().hex
    sql = f"INSERT INTO {table} VALUES (1, 'x')"
    rig.run(sql, request_id=request_id)
    for name in rig.ring.names:
        rig.run(sql, name, request_id=request_id, age_s=time.monotonic() - began)
    # Not faster than a few in a second: what is forgotten within seconds is not taken at all.
    with rig.cursor("abc") as cursor:
        for number in range(WINDOW + 5):
            cursor.execute(f"DELETE FROM {table} WHERE id = ?", [-number - 1])
    rig.restart("b")
    for name in rig.ring.names:
        with pytest.raises(haclient.OperationalError) as caught:
            rig.run(sql, name, request_id=request_id, age_s=time.monotonic() - began)
        assert caught.value.error_class == "HAPROC_RETRY_TOO_LATE"
        assert caught.value.outcome is haclient.Outcome.UNKNOWN
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]
