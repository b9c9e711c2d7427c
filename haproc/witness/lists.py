"""Texts inside a plan's nodes: lists in brackets, split where no parenthesis is open."""

from __future__ import annotations

import re

from haproc.witness.plan import UnreadableError

_OPENING, _CLOSING = "([{", ")]}"
_BRACKET = re.compile(r"[()\[\]{}]")


def closing(text: str, start: int) -> int:
    """Return where the bracket that opens at ``start`` is closed; raises UnreadableError."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in _OPENING:
            depth += 1
        elif text[at] in _CLOSING:
            depth -= 1
            if not depth:
                return at
    raise UnreadableError("a bracket is not closed")


def is_balanced(text: str) -> bool:
    """Whether each bracket in a text is closed by one of its kind."""
    opened: list[str] = []
    for match in _BRACKET.finditer(text):
        if match.group() in _OPENING:
            opened.append(match.group())
        elif not opened or _OPENING.index(opened.pop()) != _CLOSING.index(match.group()):
            return False
    return not opened


def split(text: str, separator: str = ", ") -> list[str]:
    """Return the parts of a list, split at separators that stand in no brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text[at] in _OPENING:
            depth += 1
        elif text[at] in _CLOSING:
            depth -= 1
        elif not depth and text.startswith(separator, at):
            parts.append(text[start:at])
            at = start = at + len(separator)
            continue
        at += 1
    return [*parts, text[start:]] if text else []


def leading(text: str) -> tuple[list[str], str]:
    """Return the list in the brackets that ``text`` begins with, and what stands behind it."""
    if not text.startswith("["):
        raise UnreadableError("a list was expected")
    end = closing(text, 0)
    return split(text[1:end]), text[end + 1 :].removeprefix(", ")
