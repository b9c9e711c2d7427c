"""Tests of a ring of two real clusters: one of them serves alone, but is never a majority."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from haproc.cli.main import main
from haproc.ring.local import LocalRing
from tests.fault.test_poison import haproc, mend, printed
from tests.rig import SPARK_SETTINGS, Rig, Writer

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


def test_ring_of_two_is_rolled_twice_in_succession(
    two: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    two.settled()
    for _ in range(2):
        before = {name: two.ring.pids(name)["haproc"] for name in "ab"}
        assert roll(two, "--what", "haproc", "--timeout-s", "120") == 0, capsys.readouterr().err
        assert all(two.ring.pids(name)["haproc"] not in (None, before[name]) for name in "ab")
    output = capsys.readouterr().err
    assert re.findall(r"(\w): (drained|serves again)", output) == [
        (name, what) for name in "abab" for what in ("drained", "serves again")
    ]


def test_roll_that_fails_reports_the_state_of_each_part_and_can_be_repeated(
    two: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    two.settled()
    two.ring.kill("b", "spark")
    two.wait(lambda: two.status("b")["state"] != "READY", 60)
    try:
        assert roll(two, "--what", "haproc", "--timeout-s", "1") == 1
    finally:
        asyncio.run(two.ring.start_spark("b"))
    output = capsys.readouterr().err
    assert "b does not serve" in output and "it can be run again" in output
    pid = two.ring.pids("a")["haproc"]
    assert re.search(rf"a is READY \(haproc {pid}, spark \d+\)", output), output
    assert re.search(r"b is \w+ \(haproc \d+, spark does not run\)", output), output
    # As if a roll had ended in the middle: a is stopped, or drained.
    for left in (two.ring.stop_haproc, two.drain):
        two.settled()
        asyncio.run(left("a"))
        assert roll(two, "--what", "haproc", "--timeout-s", "120") == 0, capsys.readouterr().err
        assert [two.status(name)["state"] for name in "ab"] == ["READY", "READY"]


def undecided(rig: Rig, name: str) -> Any:
    """Return what a cluster reports as undecided, once its metrics agree with its status."""
    url = rig.ring.config.peer_url(name) + "/metrics"
    found: list[Any] = []

    def is_consistent() -> bool:
        found[:] = [rig.status(name).get("undecided")]
        with urllib.request.urlopen(url, timeout=60) as response:
            metrics = response.read().decode()
        (value,) = re.findall(r"^haproc_undecided(?:{.*})? (\S+)$", metrics, re.M)
        return float(value) == (found[0] is not None)

    rig.wait(is_consistent, 60)
    return found[0]


def test_tie_takes_no_cluster_out_of_service_until_an_operator_decides(
    two: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    table = two.table()
    two.run(f"INSERT INTO {table} VALUES (1, 'x')", order="ab")
    two.settled()
    mend(two, f"UPDATE {table} SET name = 'y'", "a")
    assert haproc(two, "verify", "--json", "--wait-s", "300") == 1
    found = printed(capsys)
    assert {each["finding"] for each in found["clusters"].values()} == {"undecided"}
    assert list(found["differing"]) == [f"spark_catalog.default.{table}"]
    # That a was written past HAProc is known, though no majority says that it is wrong.
    (past,) = [each for each in found["clusters"]["a"]["foreign"] if table in each["table"]]
    assert past["operation"] == "UPDATE" and past["changes_rows"]
    assert not [each for each in found["clusters"]["b"]["foreign"] if table in each["table"]]
    for name in "ab":
        two.wait(lambda name=name: undecided(two, name) is not None, 60)  # type: ignore[misc]
        assert table in str(undecided(two, name)["what"])
        assert two.status(name)["state"] == "READY"
        assert two.run(f"SELECT count(*) FROM {table}", order=name) == [(1,)]
    assert main(["status", "--config", str(two.ring.file)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"UNDECIDED.*{table}", shown, re.S)
    assert re.search(rf"^a: tables were written past HAProc.*{table} version", shown, re.M)
    # a is wrong, though it may be the one that is asked.
    assert haproc(two, "verify", "--trust", "b", "--json", "--wait-s", "300") == 1
    found = printed(capsys)
    assert {n: each["finding"] for n, each in found["clusters"].items()} == {
        "a": "different",
        "b": "equal",
    }
    two.wait(lambda: two.status("a")["state"] == "DIVERGED", 60)
    assert table in two.status("a")["reason"]
    assert two.status("b")["state"] == "READY"
    for name in "ab":
        two.wait(lambda name=name: undecided(two, name) is None, 60)  # type: ignore[misc]
    two.run(f"INSERT INTO {table} VALUES (2, 'z')", order="ba")
    mend(two, f"UPDATE {table} SET name = 'x' WHERE id = 1", "a")
    assert haproc(two, "verify", "--wait-s", "300") == 0
    assert two.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x"), (2, "z")]
    two.check_equal(table)


@pytest.mark.parametrize("way", ["stream", "storage"])
def test_cluster_rebuilt_under_load_and_killed_meanwhile_equals_the_other(
    two: Rig, way: str
) -> None:
    two.settled()
    table, other = two.table(), two.table()
    two.run(f"INSERT INTO {other} SELECT id, 'x' FROM range(1000)", order="ab")
    two.run(f"DELETE FROM {other} WHERE id < 10", order="ab")
    two.restart("b", fault="copied.table:1:kill")
    writer = Writer(two, table, order="ab")
    writer.start()
    try:
        writer.wait_for(3)
        words = ("cluster", "rebuild", "b", "--from", "a", "--way", way, "--yes")
        assert haproc(two, *words) == 0
        two.gone("b", 300)
        writer.wait_for(3)
        two.start("b")
        writer.wait_for(3)
    finally:
        writer.stop()
    two.settled(300)
    assert haproc(two, "verify", "--wait-s", "300") == 0
    ids = [number for (number,) in two.everywhere(f"SELECT id FROM {table} ORDER BY id")]
    assert ids == sorted(writer.acknowledged)
    two.check_equal(table, other)


def test_table_written_past_haproc_is_repaired(two: Rig) -> None:
    two.settled()
    table = two.table()
    two.run(f"INSERT INTO {table} VALUES (1, 'x')", order="ab")
    two.settled()
    mend(two, f"DELETE FROM {table}", "b")
    words = ("table", "repair", f"default.{table}", "--on", "b", "--from", "a", "--yes")
    assert haproc(two, *words) == 0
    mend(two, f"DELETE FROM {table}", "b")
    words = ("cluster", "rebuild", "b", "--tables", f"*.{table[:-1]}?", "--from", "a", "--yes")
    assert haproc(two, *words) == 0
    two.run(f"INSERT INTO {table} VALUES (2, 'y')", order="ab")
    assert haproc(two, "verify", "--wait-s", "300") == 0
    assert two.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x"), (2, "y")]
    two.check_equal(table)
