"""PySpark programs among the clients: each is a separate process, as in practice.

This module starts and ends them; `pyspark_program` runs in them. A program receives its settings in
one line of JSON, writes into the run's history itself, and ends once its input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests.fault.torture.history import History
from tests.fault.torture.part import Part

ENDS_S = 240.0
"""More than a plain program's longest pause between two tries (60 s) and a slow statement."""
_LOOK_S = 0.2
_OUTPUT_SHOWN = 3000


class Way(StrEnum):
    """The way by which a program reaches the ring."""

    PLAIN = "plain"
    """Plain PySpark; its channel has the doors' addresses as a list, as of one name."""
    CHANNEL = "channel"
    """`haclient.spark`."""


@dataclass(frozen=True, slots=True)
class ProgramArguments:
    """The arguments of a program."""

    name: str
    number: int
    way: Way
    doors: tuple[str, ...]
    """``host:port``, in the program's order."""
    seed: int
    file: str
    began: float
    """The time at which the run began, by the machine's clock."""


class Program(Part):
    """Runs one program until it is stopped; its output is in a file beside the history."""

    def __init__(self, arguments: ProgramArguments, history: History) -> None:
        super().__init__(arguments.name, history)
        self._arguments = arguments

    def work(self) -> None:
        """Start the program and wait for its end; raise RuntimeError if it fails."""
        log_file = Path(self._arguments.file).parent / f"{self.name}.log"
        command = [sys.executable, "-m", "tests.fault.torture.pyspark_program"]
        with (
            log_file.open("wb") as output,
            subprocess.Popen(
                [*command, json.dumps(asdict(self._arguments))],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[3],
            ) as process,
        ):
            while process.poll() is None and not self._stopped.wait(_LOOK_S):
                pass
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if process.returncode:
            end = log_file.read_text(errors="replace")[-_OUTPUT_SHOWN:]
            raise RuntimeError(f"{self.name} ended with {process.returncode}: {end}")


def make_programs(
    address: Callable[[str], str],
    names: Sequence[str],
    seed: int,
    history: History,
    *,
    count: int,
    first_number: int,
) -> list[Program]:
    """Return this many programs, plain and other ones in turn, each with its order of the doors."""
    made = []
    for index in range(count):
        way = list(Way)[index % len(Way)]
        first = index % len(names)
        arguments = ProgramArguments(
            name=f"{way}-{index // len(Way) + 1}",
            number=first_number + index,
            way=way,
            doors=tuple(address(each) for each in (*names[first:], *names[:first])),
            seed=seed,
            file=str(history.file),
            began=history.began,
        )
        made.append(Program(arguments, history))
    return made
