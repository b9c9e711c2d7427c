"""The order in which a ring's clusters are restarted, and the wait before a drain.

Docs: docs/operate/guide.md, "Rolling maintenance".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from haproc.cli import rings
from haproc.cli.queue import Asker, AskError
from haproc.cli.rings import Turns, turns_of
from haproc.failure import ErrorClass, refused
from tests.unit.door_rig import door
from tests.unit.test_doors_queue import config_of

UP = {"state": "READY", "drained": False}
DRAINED = {"state": "DRAINING", "drained": True}
AWAY = {"state": "-", "error": "no answer"}


@pytest.mark.parametrize(
    ("names", "answers", "turns"),
    [
        ("ab", {"a": UP, "b": UP}, Turns(("a", "b"), frozenset())),
        # what an earlier roll has left comes first
        ("ab", {"a": UP, "b": DRAINED}, Turns(("b", "a"), frozenset())),
        ("ab", {"a": UP, "b": AWAY}, Turns(("b", "a"), frozenset("b"))),
        # who is not to be restarted has to serve, and so has who needs mending
        ("a", {"a": UP, "b": DRAINED}, "b does not serve (DRAINING)"),
        ("a", {"a": UP, "b": AWAY}, "b does not serve (-)"),
        ("ab", {"a": {"state": "RECOVERING"}, "b": UP}, "a does not serve (RECOVERING)"),
        ("ab", {"a": {"state": "DIVERGED"}, "b": UP}, "a does not serve (DIVERGED)"),
    ],
)
def test_turns_begin_with_unfinished_clusters_and_require_the_others_to_serve(
    names: str, answers: dict[str, Any], turns: Turns | str
) -> None:
    assert turns_of(names, answers) == turns


async def test_drain_waits_until_the_cluster_knows_that_another_one_serves(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.drains.error = refused(ErrorClass.NOT_NOW, "a is RECOVERING")

        async def allow_later() -> None:
            await asyncio.sleep(0.3)
            assert not rig.drains.drained
            rig.drains.error = None

        async with Asker(config_of(rig)) as asker:
            await asyncio.gather(rings._drain(asker, "a", 10.0), allow_later())
            assert rig.drains.drained
            rig.drains.error = refused(ErrorClass.NOT_NOW, "a is RECOVERING")
            with pytest.raises(AskError, match="a is RECOVERING"):
                await rings._drain(asker, "a", 0.2)


async def test_drain_refused_for_another_reason_does_not_wait(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.drains.error = refused(ErrorClass.BAD_REQUEST, "this is another HAProc")
        async with Asker(config_of(rig)) as asker:
            with pytest.raises(AskError, match="another HAProc"):
                await asyncio.wait_for(rings._drain(asker, "a", 60.0), 5)
