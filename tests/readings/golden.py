"""Recorded readings, so that the judge of them is tested without Spark."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haproc.reading.tree import Reading, read

FOLDER: Final = Path(__file__).parent.parent / "golden" / "readings"
CORPUS: Final = Path(__file__).parent / "corpus"
WAREHOUSE: Final = "file:/warehouse"
"""Stands in readings for the folder of the server's tables."""
NOW: Final = "2026-03-01 23:30:00"
"""Stands in readings for the moment at which they were made, in UTC."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Spark's answer for a statement: a reading as JSON, or the name of an error.

    ``world``: the schema that it was read in. ``parsed``: the reading without an analyzed tree, if
    the error is the analyzer's.
    """

    world: str
    data: str = ""
    error: str = ""
    parsed: str = ""

    def reading(self, statement: str) -> Reading:
        """Return the reading as trees; raise LookupError for an error."""
        if self.error:
            raise LookupError(f"{statement}: Spark says {self.error}")
        return read(self.data, statement)


@functools.cache
def part(name: str) -> dict[str, Recorded]:
    """Return the recorded readings of a part of the corpus, by statement, in its order."""
    readings = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return {statement: _recorded(each) for statement, each in readings.items()}


def everything() -> Iterator[tuple[str, Recorded]]:
    """Yield all statements of the corpus with what was recorded, each once."""
    seen = set[str]()
    for path in sorted(CORPUS.glob("*.txt")):
        for statement, found in part(path.stem).items():
            if statement not in seen:
                seen.add(statement)
                yield statement, found


def recorded(statement: str) -> Recorded:
    """Return the recorded reading of a statement, from the first part that holds it."""
    for path in sorted(CORPUS.glob("*.txt")):
        found = part(path.stem).get(statement)
        if found is not None:
            return found
    raise LookupError(f"no reading of {statement!r} is recorded: add it to tests/readings/corpus")


def reading_of(statement: str) -> Reading:
    """Return the reading of a statement; raises LookupError if there is none, or an error."""
    return recorded(statement).reading(statement)


def _recorded(entry: dict[str, Any]) -> Recorded:
    if "error" in entry:
        parsed = json.dumps(entry["parsed"]) if "parsed" in entry else ""
        return Recorded(entry["world"], error=entry["error"], parsed=parsed)
    return Recorded(entry["world"], data=json.dumps(entry["reading"]))
