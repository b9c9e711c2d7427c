"""Adds a cluster to a configuration's text, or removes one; everything else stays as it is.

The text is changed, not the values, so comments and order stay. Only a list of clusters in block
style (each begins with a dash on its own line) is changed. Before the result is written, the caller
reads it and checks it with `changed_as_meant`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml

from haproc.config.model import Config


class EditError(Exception):
    """The configuration's text cannot be changed; the message says what to do by hand."""


def add_cluster(text: str, cluster: Mapping[str, Any]) -> str:
    """Return the configuration's text with a cluster added after the last one."""
    items, indent = _items(text)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    _, after = items[-1]
    dumped = yaml.safe_dump(dict(cluster), sort_keys=False, allow_unicode=True).splitlines()
    pad = " " * indent
    added = [f"{pad}- {dumped[0]}\n"] + [f"{pad}  {line}\n" for line in dumped[1:]]
    return "".join([*lines[:after], *added, *lines[after:]])


def remove_cluster(text: str, index: int) -> str:
    """Return the configuration's text without the cluster at this index of its list."""
    items, _ = _items(text)
    first, after = items[index]
    lines = text.splitlines(keepends=True)
    return "".join(lines[:first] + lines[after:])


def changed_as_meant(
    before: Config, after: Config, added: str | None = None, removed: str | None = None
) -> bool:
    """True if two configurations differ only by one cluster: ``added`` or ``removed``.

    ``before``, ``after``: the configurations; ``added``, ``removed``: the cluster's name.
    """
    old = {c.name: c for c in before.clusters if c.name != removed}
    new = {c.name: c for c in after.clusters if c.name != added}
    names = {c.name for c in after.clusters}
    same = dataclasses.replace(before, clusters=()) == dataclasses.replace(after, clusters=())
    there = (added is None or added in names) and (removed is None or removed not in names)
    return same and there and list(old.items()) == list(new.items())


def _items(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return where each cluster is in the text: its first line, and the line after its last.

    Also returns the indent of the dashes. Raises EditError if the list has another style.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    found = None
    if isinstance(root, yaml.MappingNode):
        found = next((value for key, value in root.value if key.value == "clusters"), None)
    if not isinstance(found, yaml.SequenceNode) or found.flow_style or not found.value:
        raise EditError(
            "clusters is not written as a list whose items begin with a dash on a line of their "
            "own: change the file by hand"
        )
    lines = text.splitlines()
    items: list[tuple[int, int]] = []
    for item in found.value:
        first, after = item.start_mark.line, item.end_mark.line
        if item.end_mark.column > 0 and lines[after : after + 1] and _within(lines[after], item):
            after += 1
        # Comments and empty lines after it belong to the next item.
        while after > first + 1 and not _content(lines[after - 1]):
            after -= 1
        items.append((first, after))
    return items, found.value[0].start_mark.column - 2


def _within(line: str, item: yaml.Node) -> bool:
    """True if ``line``, in which the YAML node's end mark is, still has text of the node."""
    return bool(line[: item.end_mark.column].strip())


def _content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
