"""The documents describe everything that exists, and mention nothing that does not exist.

Read from the sources: environment variables, states, error classes, make targets, subcommands,
links. The documents in docs/reference are generated and must match the code.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from haclient.failover import Reason
from haproc.cli import main as cli
from haproc.engine.errors import ErrorKind
from haproc.failure import ErrorClass
from haproc.membership.state import State
from haproc.metrics import ALL
from scripts import reference
from tests.unit.test_layering import ORDER

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ALL_TEXT = "\n".join(document.read_text() for document in DOCUMENTS)
"""Facts without a fixed place are looked for in all documents."""
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text()
README = (ROOT / "README.md").read_text()
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def sources(*packages: str) -> Iterator[Path]:
    for package in packages or ("haproc", "haclient", "dmq"):
        yield from sorted((ROOT / package).rglob("*.py"))


# -- what is generated ------------------------------------------------------------------------


def test_generated_reference_is_up_to_date() -> None:
    command = [sys.executable, "-m", "scripts.reference", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_key_error_class_and_metric_is_described() -> None:
    assert [key.path for key in reference.walk_keys() if not key.meaning.strip()] == []
    assert [each for each in ErrorClass if not reference.described(ErrorClass, each.name)] == []
    assert [each for each in Reason if not reference.described(Reason, each.name)] == []
    assert [each.args[0] for each in ALL if not each.args[1]] == []


def test_every_error_class_belongs_to_one_group() -> None:
    grouped = [each for _, classes in reference._groups() for each in classes]
    assert sorted(grouped) == sorted(ErrorClass)


def test_documented_limits_and_timeouts_exist() -> None:
    known_keys = {key.path for key in reference.walk_keys()}
    named = re.findall(r"`((?:limits|timeouts)\.[a-z_]+)`", ALL_TEXT)
    assert [
        name for name in named if name not in {*known_keys, "limits.py"} and not name.endswith("_")
    ] == []


# -- names in the code -------------------------------------------------------------------------


def environment_variables() -> set[str]:
    text = "".join(path.read_text() for path in sources())
    read = re.findall(r"environ(?:\.get\(|\[)\s*\"([A-Z_]+)\"", text)
    return {*read, *re.findall(r"^(?:[A-Z]+_)?VARIABLE = \"([A-Z_]+)\"", text, re.MULTILINE)}


def spelled(files: Iterable[Path]) -> set[str]:
    """Return the texts in the code that look like an error class of our own."""
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
    """Return every error class of our own, with those that the client composes."""
    return {*ErrorClass, *spelled(sources()), *(f"HACLIENT_{reason.name}" for reason in Reason)}


def test_error_classes_are_defined_in_one_module() -> None:
    others = [path for path in sources("haproc") if path != ROOT / "haproc" / "failure.py"]
    assert spelled(others) == set()


def test_states_and_error_kinds_have_an_error_class() -> None:
    kinds = set(ErrorKind) - {ErrorKind.APPLICATION}
    assert {f"HAPROC_{each.upper()}" for each in (*State, *kinds)} < set(ErrorClass)


def test_environment_variables_are_documented() -> None:
    assert environment_variables() >= {"HAPROC_FAULT", "HAPROC_CACHE", "HACLIENT_SERVERS"}
    assert {name for name in environment_variables() if f"`{name}`" not in ALL_TEXT} == set()


def test_states_are_documented() -> None:
    headings = "\n".join(re.findall(r"^#+ .*$", ALL_TEXT, re.MULTILINE))
    rows = "\n".join(re.findall(r"^\| ([^|]*) \|", ALL_TEXT, re.MULTILINE))
    found = set(re.findall(r"[A-Z_]+", f"{headings}\n{rows}"))
    assert {state for state in State if state not in found} == set()


def test_error_classes_are_documented() -> None:
    assert {name for name in error_classes() if f"`{name}`" not in ERRORS} == set()


def test_documented_error_classes_exist() -> None:
    named = set(re.findall(r"`((?:HAPROC|HACLIENT)_[A-Z_]*[A-Z])`", ALL_TEXT))
    chosen = {"HAPROC_SECRET", "HAPROC_SPARK_TOKEN"}
    assert named - error_classes() - environment_variables() - chosen == set()


# -- what readers are told to do ---------------------------------------------------------------


def code_blocks(document: Path) -> str:
    return "\n".join(CODE_BLOCK.findall(document.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_mentioned_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    named = set(re.findall(r"^make ([a-z]+)", code_blocks(document), re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z]+)", text))
    assert named - targets == set()


def test_readme_shows_the_two_commands() -> None:
    assert re.search(r"^make demo\b", README, re.MULTILINE)
    assert re.search(r"^make test\b", README, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_haproc_commands_can_be_parsed(document: Path) -> None:
    whole = code_blocks(document).replace("\\\n", " ")
    shown_lines = re.findall(r"^(?:\.venv/bin/)?haproc (.+)$", whole, re.MULTILINE)
    for line in shown_lines:
        words = line.partition("#")[0].split()
        assert callable(cli._parser().parse_args(words).run), line


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_have_a_target(document: Path) -> None:
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
    """Return True if a module exists: by its path, from haproc or the top, or by its end."""
    places = ("", "haproc/", *(f"{top}/**/" for top in (*PACKAGES, "tests", "bench", "scripts")))
    return any(next(ROOT.glob(place + path), None) is not None for place in places)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_mentioned_modules_exist(document: Path) -> None:
    named = set(re.findall(r"`([\w./*]+\.py)\b[^`]*`", document.read_text()))
    assert {path for path in named if not is_there(path)} == set()


def resolves(name: str) -> bool:
    """Return True if ``room.module.Class.method`` exists, from haproc or the top."""
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


def test_functions_in_the_section_about_one_write_exist() -> None:
    design = (ROOT / "docs" / "architecture.md").read_text()
    way = design.split("## The way of one write\n")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z_]+(?:\.\w+)+)`", way)
    assert len(named) > 15
    assert [name for name in named if not resolves(name)] == []


def test_contributors_list_of_rooms_is_complete_and_in_order() -> None:
    text = (ROOT / "docs" / "contribute.md").read_text()
    rooms = re.findall(
        r"^\| `(\w+)` \|", text.split("## Rooms\n")[1].split("\n## ")[0], re.MULTILINE
    )
    folders = {path.parent.name for path in ROOT.glob("haproc/*/__init__.py")}
    assert [room for room in rooms if room not in PACKAGES] == [
        room for room in ORDER if room in folders
    ]
