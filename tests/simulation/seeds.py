"""Running seeds, one or many."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from tests.simulation.revoked import simulate_revoked
from tests.simulation.scenario import Report, simulate
from tests.simulation.sessions import simulate as simulate_sessions
from tests.simulation.violations import Problem, Violation

SEEDS: Final = int(os.environ.get("SEEDS", "4"))
"""The seeds that tests run under every kind of fault; longer runs are started by hand."""


def one(seed: int, **options: int) -> Report:
    """Run a seed of the scenario with every kind of fault."""
    return judged(partial(simulate, **options), seed)


def judged(run: Callable[[int], Report], seed: int) -> Report:
    """Run a seed; a crash of the run is a problem of the run."""
    logging.disable(logging.CRITICAL)
    try:
        return run(seed)
    except Exception as error:
        return Report(seed, problems=[Problem(Violation.CRASHED, repr(error))])
    finally:
        logging.disable(logging.NOTSET)


def with_others(seed: int) -> Report:
    """Run a seed of the scenario, of one with revoked writes, and of clients' sessions."""
    report = one(seed)
    report.problems += judged(lambda each: simulate_revoked(each)[0], seed).problems
    sessions = judged(lambda each: Report(each, problems=simulate_sessions(each)), seed)
    report.problems += sessions.problems
    return report


def many(
    seeds: Iterable[int], run: Callable[..., Report] = one, **options: int
) -> Iterator[Report]:
    """Run seeds side by side, on every core.

    Each runs in a new process from the start: gRPC's state in a process does not survive a fork.
    """
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(run, **options), seeds, chunksize=10)
