"""The statements of the corpus, and the worlds (schemas with tables) that they are read in.

A file of `corpus/` or `worlds/` has a statement on each line; one that contains line ends, begins
with `"` or `#`, or has blanks around it is written as a JSON string. Lines that begin with `#` are
comments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
WORLDS: Final = ("default", "texts", "one", "wide", "witness", "session")
"""`session` is `witness` beside temporary views, functions and variables."""
_READ_IN: Final = {
    "ddl": ("witness",),
    "witness": ("witness",),
    "computed": ("session",),
    "session": ("session",),
    "everyday": ("session", "wide"),
}


def names() -> list[str]:
    """Return the names of the parts of the corpus."""
    return sorted(path.stem for path in (HERE / "corpus").glob("*.txt"))


def statements(name: str) -> list[str]:
    """Return the statements of a part."""
    return _statements((HERE / "corpus" / f"{name}.txt").read_text(encoding="utf-8"))


def section(name: str, title: str) -> list[str]:
    """Return the statements of a part that stand between this comment and the next one."""
    text = (HERE / "corpus" / f"{name}.txt").read_text(encoding="utf-8")
    return _statements(text.partition(f"\n# {title}\n")[2].partition("\n# ")[0])


def worlds_of(name: str) -> tuple[str, ...]:
    """Return the worlds in which a part's statements are tried, one after another."""
    return _READ_IN.get(name, ("default", "texts", "one", "wide", "witness"))


def world(name: str) -> list[str]:
    """Return the statements that make a world, in an empty schema of its name."""
    return _statements((HERE / "worlds" / f"{name}.txt").read_text(encoding="utf-8"))


def line_of(statement: str) -> str:
    """Return the line of a statement in a file."""
    plain = statement.strip() == statement and statement.isprintable()
    return statement if plain and statement[:1] not in ('"', "#", "") else json.dumps(statement)


def _statements(text: str) -> list[str]:
    # Split at line feeds alone: other line ends may stand in statements.
    lines = text.split("\n")
    kept = (line for line in lines if line and not line.startswith("#"))
    return [json.loads(line) if line.startswith('"') else line for line in kept]
