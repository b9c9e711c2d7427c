"""Test of a client that discovers a real ring from one URL."""

from __future__ import annotations

import asyncio

import pytest

from tests.rig import Rig

pytestmark = pytest.mark.spark


def test_client_with_one_url_discovers_the_ring_and_fails_over(rig: Rig) -> None:
    urls = {name: rig.url(name) for name in "abc"}
    with rig.connect("b", discover=True, refresh_s=0.1) as connection:
        rig.wait(lambda: bool(connection.execute("SELECT 1")) and len(connection.servers) == 3, 60)
        assert connection.servers == (urls["b"], urls["a"], urls["c"])
        asyncio.run(rig.ring.stop_haproc("b"))
        assert connection.execute("SELECT 1").ha["cluster"] in "ac"
    rig.start("b")
