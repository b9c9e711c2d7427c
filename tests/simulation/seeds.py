"""Running seeds, one or many."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from tests.simulation.scenario import Report, simulate
from tests.simulation.violations import Problem, Violation

SEEDS: Final = int(os.environ.get("SEEDS", "16"))
"""How many seeds the tests run under every kind of fault. More belong to long runs, by hand."""


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


def many(seeds: Iterable[int], **options: int) -> Iterator[Report]:
    """Run seeds side by side, on every core.

    In processes of their own from the start: what gRPC leaves in a process does not survive a fork.
    """
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(one, **options), seeds, chunksize=10)
