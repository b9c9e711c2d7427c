"""The objects that the parts of a member share are assigned only by their owner."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dmq.memory import MemoryLog, MemoryStore
from haproc.config.model import Timeouts
from haproc.config.sections import Limits
from haproc.replicate.member.condition import Identity
from haproc.replicate.member.core import Core, Reached

REPLICATE = Path(__file__).parents[2] / "haproc" / "replicate"


async def test_core_fields_cannot_be_assigned_after_creation() -> None:
    identity, log = Identity("demo", "a", "a1", ("a", "b")), MemoryLog(MemoryStore())
    nobody: Any = None
    core = Core.of(identity, Reached(log, nobody, nobody), Limits(), Timeouts())
    for shared in (core, core.identity, core.log_state):
        for field in dataclasses.fields(shared):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(shared, field.name, None)


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets):
                pass
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case _:
                continue
        for target in targets:
            yield from (each for each in ast.walk(target) if isinstance(each, ast.Attribute))


def fields(tree: ast.AST) -> set[str]:
    """Return the fields of the classes that a module defines."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    lines = [line for each in classes for line in each.body if isinstance(line, ast.AnnAssign)]
    return {line.target.id for line in lines if isinstance(line.target, ast.Name)}


def test_no_module_assigns_to_fields_that_another_module_owns() -> None:
    found = []
    for path in sorted(REPLICATE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for each in assigned(tree):
            mine = isinstance(each.value, ast.Name) and each.value.id == "self"
            if isinstance(each.ctx, ast.Store) and not mine and each.attr not in fields(tree):
                found.append(f"{path.name}:{each.lineno} {ast.unparse(each)}")
    assert found == []
