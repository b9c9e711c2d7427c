"""Reads YAML as plain values, with the line of each key and the problems that were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

# The problems of a configuration, all of them at once.


Finding = tuple[str, str]
"""A pair: a key's path in the configuration, and its problem as a message."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a configuration.

    ``path``: the key's full path (``clusters[1].name``).
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.path}: {self.message}{where}" if self.path else f"{self.message}{where}"


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` has every problem that was found."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{file} cannot be used:\n{lines}")


# YAML as plain values, with the line of each key.
#
# The text is composed into YAML's nodes, which are turned into plain values here, because the usual
# loader silently keeps the last of two equal keys. `Tree.lines` holds the line of each key path, so
# that later findings can name it, too.


_DEPTH_MAX = 20


@dataclass(slots=True)
class Tree:
    """A YAML document: its plain value, the line of each key by the key's path, the problems."""

    value: object = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def join(path: str, key: str) -> str:
    """Return the path of the key ``key`` below ``path``."""
    return f"{path}.{key}" if path else key


def parse(text: str) -> Tree:
    """Parse one YAML document; problems are in the result, none is raised."""
    tree = Tree()
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            tree.problems.append(Problem("", "the file is empty"))
        else:
            tree.value = _plain(loader, node, "", tree, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark is not None else None
        tree.problems.append(Problem("", f"not valid YAML: {error.problem}", line))
    except yaml.YAMLError as error:
        tree.problems.append(Problem("", f"not valid YAML: {error}"))
    except RecursionError:
        tree.problems.append(Problem("", "not valid YAML: it is nested too deeply"))
    finally:
        if loader is not None:
            loader.dispose()
    return tree


def _plain(loader: yaml.SafeLoader, node: yaml.Node, path: str, tree: Tree, depth: int) -> object:
    tree.lines.setdefault(path, node.start_mark.line + 1)
    if depth > _DEPTH_MAX:
        tree.problems.append(_problem(path, "nested too deeply", node))
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, tree, depth)
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, item, f"{path}[{index}]", tree, depth + 1)
            for index, item in enumerate(node.value)
        ]
    try:
        value: object = loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        tree.problems.append(_problem(path, f"cannot be read: {error}", node))
        return None
    return value


def _mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: str, tree: Tree, depth: int
) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            tree.problems.append(_problem(path, "a key must be plain text", key_node))
            continue
        key = str(key_node.value)
        below = join(path, key)
        if key in result:
            first = tree.lines[below]
            message = f"given twice; the first is in line {first}"
            tree.problems.append(_problem(below, message, key_node))
            continue
        tree.lines[below] = key_node.start_mark.line + 1
        result[key] = _plain(loader, value_node, below, tree, depth + 1)
    return result


def _problem(path: str, message: str, node: yaml.Node) -> Problem:
    return Problem(path, message, node.start_mark.line + 1)
