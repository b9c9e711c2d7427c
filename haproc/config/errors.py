"""What is wrong with a configuration, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Finding = tuple[str, str]
"""A key's path and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that must be changed; ``path`` is the key's full path (``clusters[1].name``)."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.path}: {self.message}{where}" if self.path else f"{self.message}{where}"


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` holds every one that was found."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{file} cannot be used:\n{lines}")
