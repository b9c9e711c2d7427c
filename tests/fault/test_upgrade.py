"""Test of an upgrade of HAProc, its plugin and Spark under load, one cluster after another."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import haclient
from haproc.cli.nodes import ask_all
from haproc.config.load import load as load_config
from haproc.config.model import Config
from haproc.ring.holdings import contents, differences
from tests.fault import versions
from tests.fault.test_rolling import AioLoad, Load
from tests.fault.versions import Version

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

NAMES = "ab"
SETTLED_S = 240.0


def states(config: Config) -> dict[str, tuple[str, int]]:
    """Return each cluster's state and lag."""
    answers = asyncio.run(ask_all(config))
    return {name: (str(a.get("state")), int(a.get("lag", -1))) for name, a in answers.items()}


def wait(condition: Callable[[], bool], timeout_s: float = SETTLED_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.2)


def goes_on(loads: list[Load]) -> None:
    """Wait until all clients have written more."""
    before = [each.written for each in loads]
    wait(lambda: all(x.written > n for x, n in zip(loads, before, strict=True)))


@contextmanager
def ring(version: Version, folder: Path) -> Iterator[Config]:
    """Start a ring of two clusters of this version."""
    version.run("ring", "up", "--clusters", "2", "--folder", str(folder))
    try:
        yield load_config(folder / "ring.yaml", os.environ)
    finally:
        Version().started("ring", "down", "--folder", str(folder))


@contextmanager
def load(config: Config) -> Iterator[list[Load]]:
    """Let clients work; no request of theirs may fail, or be applied twice."""
    urls = [config.url(cluster.listen) for cluster in config.clusters]
    with haclient.connect(urls) as connection:
        connection.execute("CREATE TABLE kept (id INT, s STRING) USING delta")
    loads = [Load(urls, "kept", 0), AioLoad(urls, "kept", 1)]
    for each in loads:
        each.start()
    try:
        goes_on(loads)
        yield loads
    finally:
        for each in loads:
            each.stop()
        for each in loads:
            each.join(150)
    assert [each.errors for each in loads] == [[], []]
    with haclient.connect(urls, consistency="linearizable") as connection:
        cursor = connection.execute("SELECT count(*), count(DISTINCT id) FROM kept")
        written = sum(each.written for each in loads)
        assert cursor.fetchall() == [(written, written)]


def work(config: Config, number: int) -> None:
    """Write through each cluster, so that each applies writes of older and newer versions."""
    for cluster in config.clusters:
        with haclient.connect([config.url(cluster.listen)]) as connection:
            name = f"made_{number}_{cluster.name}"
            connection.execute(f"CREATE TABLE {name} USING delta AS SELECT 1 AS n")
            connection.execute(f"INSERT INTO {name} SELECT count(*) FROM kept")
            connection.execute(f"UPDATE kept SET s = 'y' WHERE id = {number}")


def test_clusters_upgraded_one_after_another_fail_no_request(tmp_path: Path) -> None:
    old, folder = versions.earlier(), tmp_path / "ring"
    # HAProc with its plugin, and then Spark, as the operators' guide has it.
    steps = [Version(spark=old.spark), Version()]
    with ring(old, folder) as config:
        with load(config) as loads:
            for number, (step, name) in enumerate(itertools.product(steps, NAMES)):
                step.run("ring", "roll", name, "--folder", str(folder), "--timeout-s", "200")
                goes_on(loads)
                work(config, number)
                if step.spark is None and name == NAMES[0]:
                    arguments = ("status", "--config", str(folder / "ring.yaml"))
                    wait(lambda: "another version.spark" in Version().started(*arguments).stdout)  # noqa: B023
                assert {state for state, _ in states(config).values()} == {"READY"}
        wait(lambda: all(found == ("READY", 0) for found in states(config).values()))
        held = asyncio.run(contents(config))
        assert differences(held) == []
        assert len(held["a"]) == 1 + len(steps) * len(NAMES) * len(config.clusters)
