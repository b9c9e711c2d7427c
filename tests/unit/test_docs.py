"""The documents tell of everything that there is, and name nothing that there is not.

Read from the sources: configuration keys with their defaults, environment variables, states, error
classes, make targets, subcommands, links.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from haclient.failover import Reason
from haproc.classify import session_settings
from haproc.cli import main as cli
from haproc.config import walk
from haproc.config.model import Config
from haproc.engine.errors import ErrorKind
from haproc.engine.interface import EngineAddress
from haproc.failure import ErrorClass
from haproc.membership.state import State
from tests.unit.test_layering import ORDER

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
README = (ROOT / "README.md").read_text()
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def sources(*packages: str) -> Iterator[Path]:
    for package in packages or ("haproc", "haclient", "dmq"):
        yield from sorted((ROOT / package).rglob("*.py"))


# -- configuration -----------------------------------------------------------------------------


def keys(kind: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key's path, as documents write it, and its default ("": none that is plain)."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        path = prefix + walk._key(kind, field)
        hint = hints[field.name]
        items = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        if items is not None:
            yield path, ""
            if dataclasses.is_dataclass(items):
                yield from keys(items, f"{path}[].")
        elif hint is EngineAddress:
            yield f"{path}.url", ""
            yield f"{path}.token", ""
        elif dataclasses.is_dataclass(hint) and field.default is not dataclasses.MISSING:
            assert isinstance(hint, type)
            yield from keys(hint, f"{path}.")
        else:
            yield path, shown(path, field.default)


def shown(path: str, default: Any) -> str:
    if path == "fanout":
        return "parallel" if default else "serial"
    if default is dataclasses.MISSING or default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def rows() -> dict[str, str]:
    """Return the second cell of each table row in the operations page, by its first."""
    found = re.findall(r"^\| `([^`|]+)` \| ([^|]*) \|", OPERATIONS, re.MULTILINE)
    return dict(found)


@pytest.mark.parametrize(("key", "default"), list(keys(Config)))
def test_configuration_key_is_documented_with_its_default(key: str, default: str) -> None:
    assert key in rows(), f"{key} has no row in docs/operations.md"
    if default:
        assert rows()[key] == f"`{default}`"


def test_documented_limit_or_timeout_exists() -> None:
    known = {key for key, _ in keys(Config)}
    named = re.findall(r"`((?:limits|timeouts)\.[a-z_]+)`", OPERATIONS)
    assert [name for name in named if name not in known and not name.endswith("_")] == []


# -- names in the code -------------------------------------------------------------------------


def environment_variables() -> set[str]:
    text = "".join(path.read_text() for path in sources())
    read = re.findall(r"environ(?:\.get\(|\[)\s*\"([A-Z_]+)\"", text)
    return {*read, *re.findall(r"^(?:[A-Z]+_)?VARIABLE = \"([A-Z_]+)\"", text, re.MULTILINE)}


def spelled(files: Iterable[Path]) -> set[str]:
    """Every text in the code that looks like an error class of our own."""
    return {name for path in files for name in spelled_in(path)} - environment_variables()


@cache
def spelled_in(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"(HAPROC|HACLIENT)_[A-Z_]*[A-Z]", node.value)
    }


def error_classes() -> set[str]:
    """Every error class of our own, and those that the client puts together."""
    return {*ErrorClass, *spelled(sources()), *(f"HACLIENT_{reason.name}" for reason in Reason)}


def test_error_classes_are_spelled_in_one_place() -> None:
    others = [path for path in sources("haproc") if path != ROOT / "haproc" / "failure.py"]
    assert spelled(others) == set()


def test_states_and_kinds_of_failures_have_an_error_class() -> None:
    kinds = set(ErrorKind) - {ErrorKind.APPLICATION}
    assert {f"HAPROC_{each.upper()}" for each in (*State, *kinds)} < set(ErrorClass)


def test_environment_variables_are_documented() -> None:
    assert environment_variables() >= {"HAPROC_FAULT", "HAPROC_CACHE", "HACLIENT_SERVERS"}
    assert {name for name in environment_variables() if f"| `{name}` |" not in OPERATIONS} == set()


def test_states_are_documented() -> None:
    assert {state for state in State if f"| `{state}` |" not in OPERATIONS} == set()


def test_error_classes_are_documented() -> None:
    assert {name for name in error_classes() if f"`{name}`" not in OPERATIONS} == set()


def test_error_classes_are_documented_once() -> None:
    rows = re.findall(r"^\| (`HAPROC_.*?) \|", OPERATIONS, re.MULTILINE)
    listed = Counter(name for row in rows for name in re.findall(r"`(HAPROC_\w+)`", row))
    assert {name for name, times in listed.items() if times > 1} == set()


def test_documented_error_classes_exist() -> None:
    named = set(re.findall(r"^\| (`HA[^|]*) \|", OPERATIONS, re.MULTILINE))
    listed = {name for cell in named for name in re.findall(r"`([A-Z_]+)`", cell)}
    assert listed - error_classes() - environment_variables() == set()


def test_settings_that_travel_or_are_reserved_are_documented_with_the_reason() -> None:
    rows = {
        f"| {', '.join(f'`{name}`' for name in group.names)} | {group.reason} |"
        for group in (*session_settings.TRAVELLING, *session_settings.RESERVED)
    }
    assert rows <= set((ROOT / "docs" / "api.md").read_text().splitlines())


# -- what readers are told to do ---------------------------------------------------------------


def code_blocks(document: Path) -> str:
    return "\n".join(CODE_BLOCK.findall(document.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_that_are_named_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    named = set(re.findall(r"^make ([a-z]+)", code_blocks(document), re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z]+)", text))
    assert named - targets == set()


def test_readme_shows_the_two_commands() -> None:
    assert re.search(r"^make demo\b", README, re.MULTILINE)
    assert re.search(r"^make test\b", README, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_haproc_commands_that_are_shown_can_be_parsed(document: Path) -> None:
    whole = code_blocks(document).replace("\\\n", " ")
    shown_lines = re.findall(r"^(?:\.venv/bin/)?haproc (.+)$", whole, re.MULTILINE)
    for line in shown_lines:
        words = line.partition("#")[0].split()
        assert callable(cli._parser().parse_args(words).run), line


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    text = CODE_BLOCK.sub("", document.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{document.name} links to {target}"


# -- the tree as the documents draw it ---------------------------------------------------------

PACKAGES = ("dmq", "haclient", "haproc")


def is_there(path: str) -> bool:
    """Whether a module is there: by its path, from haproc or the top, or by its end."""
    places = ("", "haproc/", *(f"{top}/**/" for top in (*PACKAGES, "tests", "bench", "scripts")))
    return any(next(ROOT.glob(place + path), None) is not None for place in places)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"`([\w./*]+\.py)\b[^`]*`", document.read_text()))
    assert {path for path in named if not is_there(path)} == set()


def resolves(name: str) -> bool:
    """Whether ``room.module.Class.method`` is there, from haproc or the top."""
    parts = name.split(".")
    path = parts if parts[0] in PACKAGES else ["haproc", *parts]
    for length in range(len(path), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(path[:length]))
        except ModuleNotFoundError:
            continue
        for part in path[length:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_functions_on_the_way_of_one_write_exist() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    way = design.split("## The way of one write\n")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z_]+(?:\.\w+)+)`", way)
    assert len(named) > 15
    assert [name for name in named if not resolves(name)] == []


def test_contributors_map_has_every_room_in_order() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    rooms = re.findall(
        r"^\| `(\w+)` \|", text.split("## Rooms\n")[1].split("\n## ")[0], re.MULTILINE
    )
    folders = {path.parent.name for path in ROOT.glob("haproc/*/__init__.py")}
    assert [room for room in rooms if room not in PACKAGES] == [
        room for room in ORDER if room in folders
    ]


def test_table_of_what_a_statement_may_hold_is_what_the_closed_lists_say() -> None:
    script = ROOT / "scripts" / "statement_table.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run python scripts/statement_table.py: {done.stderr}"
