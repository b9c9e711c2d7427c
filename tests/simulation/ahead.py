"""Runs in which recovering clusters copy tables ahead of their queue, whenever they can.

Most writes name their tables, and clusters stay away for longer; a backlog of a second is worth a
copy. Everything else is as in `scenario`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from haproc.replicate import catching_up
from haproc.replicate.queue import backlog
from haproc.replicate.records.control import Copy
from haproc.replicate.records.operation import Operation
from tests.simulation import scenario
from tests.simulation.clock import run
from tests.simulation.scenario import Report, Scenario

MIX = ("set",) * 6 + ("register",) * 6 + ("copy",) * 2 + ("prune", "fail", "gather", "tally")


def build(what: str, op_id: str, origin: str, rng_value: int) -> Operation:
    """Return an operation; a few have unknown tables."""
    value = 8 * rng_value if what == "set" and rng_value % 16 else rng_value
    return scenario.build(what, op_id, origin, value)


class Ahead(Scenario):
    """See the module."""

    mix = MIX
    build = staticmethod(build)
    back_rate = 0.3


@contextmanager
def soon() -> Iterator[None]:
    """Make a backlog of a second worth a copy, and allow as many copies as possible."""
    with (
        patch.object(backlog, "WORTH_S", 1.0),
        patch.object(backlog, "COPY_TABLE_S", 0.01),
        patch.object(catching_up, "LOOK_EVERY_S", 0.4),
        patch.object(catching_up, "CONSIDER_EVERY_S", 1.0),
        patch.object(catching_up, "CONSIDER_SHARE", 0),
        patch("haproc.replicate.copying_ahead.ATTEMPTS_MAX", 10),
    ):
        yield


def simulate_ahead(seed: int) -> tuple[Report, int]:
    """Run a seed; also return the number of copies begun."""
    with soon():
        made = Ahead(seed, writes_per_client=20)
        report = run(made.main())
    messages = made.ring.store.all_messages()
    return report, sum(isinstance(each, Copy) and each.ahead is True for each in messages)
