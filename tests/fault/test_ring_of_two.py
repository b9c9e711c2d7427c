"""A ring of two real clusters: while one is away the other alone serves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from haproc.cli.main import main
from haproc.ring.local import LocalRing
from tests.rig import SPARK_SETTINGS, Rig

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.thorough]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two Spark clusters, two HAProcs and their log."""
    sparks = LocalRing.open_or_create(
        tmp_path_factory.mktemp("two"),
        clusters=2,
        memory="1g",
        cores=2,
        spark_settings=SPARK_SETTINGS,
    )
    rig = Rig(tmp_path_factory.mktemp("ring_of_two"), sparks, "sqlite")
    try:
        rig.up()
        yield rig
    finally:
        rig.down()
        asyncio.run(sparks.down())


def roll(rig: Rig, *words: str) -> int:
    return main(["ring", "roll", "--folder", str(rig.ring.folder), *words])


def test_ring_of_two_is_rolled_twice_in_a_row(two: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    two.settled()
    for _ in range(2):
        before = {name: two.ring.pids(name)["haproc"] for name in "ab"}
        assert roll(two, "--what", "haproc", "--timeout-s", "120") == 0, capsys.readouterr().err
        assert all(two.ring.pids(name)["haproc"] not in (None, before[name]) for name in "ab")
    said = capsys.readouterr().err
    assert re.findall(r"(\w): (drained|serves again)", said) == [
        (name, what) for name in "abab" for what in ("drained", "serves again")
    ]


def test_roll_that_fails_says_how_each_part_stands_and_can_be_run_again(
    two: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    two.settled()
    two.ring.kill("b", "spark")
    two.wait(lambda: two.status("b")["state"] != "READY", 60)
    try:
        assert roll(two, "--what", "haproc", "--timeout-s", "1") == 1
    finally:
        asyncio.run(two.ring.start_spark("b"))
    said = capsys.readouterr().err
    assert "b does not serve" in said and "it can be run again" in said
    pid = two.ring.pids("a")["haproc"]
    assert re.search(rf"a is READY \(haproc {pid}, spark \d+\)", said), said
    assert re.search(r"b is \w+ \(haproc \d+, spark does not run\)", said), said
    # As if a roll had ended in the middle: a is stopped, or drained.
    for left in (two.ring.stop_haproc, two.drain):
        two.settled()
        asyncio.run(left("a"))
        assert roll(two, "--what", "haproc", "--timeout-s", "120") == 0, capsys.readouterr().err
        assert [two.status(name)["state"] for name in "ab"] == ["READY", "READY"]
