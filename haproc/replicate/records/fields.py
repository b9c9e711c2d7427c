"""Reads the fields of records as what they must be; TypeError for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def number(value: object, what: str = "offset") -> int:
    """Return a whole number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no {what}")
    return value


def flag(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def names(value: object) -> frozenset[str]:
    """Return a list of names as a set."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of names")
    return frozenset(value)


def offsets(value: Mapping[str, object]) -> dict[str, int]:
    """Return offsets by name."""
    return {text(name): number(offset) for name, offset in value.items()}


def pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Return texts by texts, such as settings by name."""
    return tuple((text(key), text(each)) for key, each in value)
