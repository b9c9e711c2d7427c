"""Tests of the layers: the allowed imports, read from the source, without installing or running it.

Decisions are plain code: values in, values out, with time and randomness as arguments. Every module
is such code unless `SHELLS` lists it with a reason. Imports run one way: a folder of haproc imports
only folders before it in `ORDER`. Modules and functions stay small enough to be read in one go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.unit.shells import SHELLS

ROOT = Path(__file__).parents[2]
LINES_MAX = 500
FUNCTION_LINES_MAX = 80
PARSING = ("FromString", "ParseFromString", "MergeFromString", "MergeFrom")
PARSER = "haproc/wire.py"

WORLD = frozenset(
    [
        "asyncio",
        "socket",
        "selectors",
        "threading",
        "subprocess",
        "time",
        "random",
        "secrets",
        "uuid",
        "os",
        "signal",
        "aiohttp",
        "grpc",
        "kafka",
        "redis",
        "pyspark",
    ]
)
"""Modules that make a decision depend on more than its arguments."""

ORDER = (
    "spark_error",
    "failure",
    "audit",
    "backoff",
    "protos",
    "offloop",
    "wire",
    "tracing",
    "otel",
    "classify",
    "pin",
    "reading",
    "engine",
    "config",
    "metrics",
    "membership",
    "replicate",
    "sessions",
    "jobs",
    "route",
    "statements",
    "doors",
    "node",
    "ring",
    "pipeline",
    "cli",
    "__main__",
)
"""haproc's folders and single modules; each imports only those before it."""

PROGRAMS = "haproc/pipeline"
"""Programs that use the ring's doors as any client does."""
SHOWS = "haproc/cli/usage.py"
"""Prints the results of those programs."""

REPLICATE_ORDER = (
    "records",
    "log_state",
    "compose",
    "queue",
    "member",
    "agree",
    "apply",
    "trim",
    "archive",
    "reader",
    "taking",
    "transfer",
    "copying_ahead",
    "copying",
    "restoring",
    "backing_up",
    "catching_up",
    "writes",
    "operators",
    "replica",
)
"""The parts of haproc.replicate and the modules above them, in the same way."""


@dataclass(frozen=True, slots=True)
class Source:
    """The facts about a file that the tests need, so that each file is parsed once.

    ``imports``: the full name of every module that it imports, inside functions too;
    ``functions``: each function's name and lines; ``parses``: whether it parses messages.
    """

    lines: int
    imports: list[str]
    functions: list[tuple[str, int]]
    parses: bool


@cache
def source(path: Path) -> Source:
    text = path.read_text()
    package = path.relative_to(ROOT).parent.parts
    found = Source(text.count("\n"), [], [], any(name in text for name in PARSING))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.extend(imported(node, package))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
    return found


def imported(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = package[: len(package) - node.level + 1] if node.level else ()
    module = ".".join((*base, *([node.module] if node.module else [])))
    if module == "haproc":  # "from haproc import cli" means haproc.cli
        yield from (f"haproc.{alias.name}" for alias in node.names)
    else:
        yield module


def imports(path: Path) -> list[str]:
    return source(path).imports


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def modules() -> Iterator[Path]:
    for package in ("dmq", "haclient", "haproc"):
        yield from sources(package)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def is_shell(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / each.rstrip("/")) for each in SHELLS)


def test_shells_list_only_files_that_exist() -> None:
    assert [each for each in SHELLS if not (ROOT / each).exists()] == []


def test_decisions_import_no_module_with_side_effects() -> None:
    found = [
        f"{name_of(path)} imports {name}"
        for path in modules()
        if not is_shell(path)
        for name in imports(path)
        if name.partition(".")[0] in WORLD
    ]
    assert found == []


def test_decisions_import_no_shell() -> None:
    found = []
    for path in modules():
        for name in () if is_shell(path) else imports(path):
            file = ROOT / f"{name.replace('.', '/')}.py"
            if file.exists() and is_shell(file):
                found.append(f"{name_of(path)} imports {name}")
    assert found == []


def test_shells_import_a_module_with_side_effects_or_another_shell() -> None:
    """Each listed module needs its place in the list."""
    found = []
    for each in SHELLS:
        files = sorted((ROOT / each).rglob("*.py")) if each.endswith("/") else [ROOT / each]
        names = [name for path in files for name in imports(path)]
        through = [ROOT / f"{name.replace('.', '/')}.py" for name in names]
        if not any(name.partition(".")[0] in WORLD for name in names) and not any(
            path.exists() and is_shell(path) for path in through
        ):
            found.append(each)
    assert found == []


def test_haproc_imports_parquet_readers_only_in_its_worker() -> None:
    """A file can crash the process that reads it."""
    worker, reader = "haproc.route.parquet_worker", "haproc.route.rows.parquet_files"
    allowed = {(worker, reader), (reader, "pyarrow.parquet")}
    readers = {worker, reader, "pyarrow.parquet", "pyarrow.dataset", "pyarrow.orc"}
    found = {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), name)
        for path in sources("haproc")
        for name in imports(path)
        if name in readers
    }
    assert found == allowed


def test_messages_are_parsed_in_one_module_only() -> None:
    """Another parser has another size limit, at which an accepted statement fails."""
    assert {name_of(path) for path in sources("haproc") if source(path).parses} == {PARSER}


def test_modules_and_functions_are_within_their_line_limits() -> None:
    found: list[str] = []
    for path in (*modules(), *sources("tests"), *sources("bench"), *sources("scripts")):
        if (lines := source(path).lines) > LINES_MAX:
            found.append(f"{name_of(path)} has {lines} lines")
        for name, lines in source(path).functions:
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{name_of(path)}: {name} has {lines} lines")
    assert found == []


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("dmq", {"haproc", "haclient"}),
        ("haclient", {"haproc", "dmq"}),
        ("haproc", {"haclient"}),
    ],
)
def test_package_imports_no_other_package_of_this_repository(
    package: str, forbidden: set[str]
) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        if not path.is_relative_to(ROOT / PROGRAMS) and name_of(path) != SHOWS
        for name in imports(path)
        if name.partition(".")[0] in forbidden | {"tests", "bench", "scripts"}
    ]
    assert found == []


def part(package: str, name: str) -> str | None:
    """Return the part of a package that a module belongs to."""
    inside = name.removeprefix(f"{package}.")
    return inside.split(".")[0] if inside != name else None


ORDERS = pytest.mark.parametrize(
    ("package", "order"), [("haproc", ORDER), ("haproc.replicate", REPLICATE_ORDER)]
)


@ORDERS
def test_order_lists_all_parts_of_the_package(package: str, order: tuple[str, ...]) -> None:
    folder = package.replace(".", "/")
    parts = {
        path.relative_to(ROOT / folder).parts[0].removesuffix(".py") for path in sources(folder)
    }
    assert parts - {"__init__", "__pycache__"} == set(order)


@ORDERS
def test_imports_run_one_way_in_the_order(package: str, order: tuple[str, ...]) -> None:
    upward = set()
    for path in sources(package.replace(".", "/")):
        mine = part(package, ".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name in imports(path):
            theirs = part(package, name)
            if mine not in order or theirs not in order or mine == theirs:
                continue
            if order.index(theirs) > order.index(mine):
                upward.add((name_of(path), name))
    assert upward == set()
