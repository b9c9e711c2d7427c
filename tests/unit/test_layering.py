"""Who may import whom. Read from the source, so nothing needs to be installed or run.

Decisions are plain code: values in, values out, with time and randomness as arguments. And arrows
run one way: a folder of haproc imports only folders that stand before it in `ORDER`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DECISIONS = (
    "dmq/record.py",
    "dmq/entries.py",
    "dmq/kafka_chunks.py",
    "dmq/kafka_options.py",
    "dmq/kafka_topic.py",
    "haproc/classify/*.py",
    "haproc/pin/*.py",
    "haproc/witness/*.py",
    "haproc/config/model.py",
    "haproc/config/shares.py",
    "haproc/config/check.py",
    "haproc/config/check_kafka.py",
    "haproc/config/check_redis.py",
    "haproc/config/errors.py",
    "haproc/config/edit.py",
    "haproc/config/hosts.py",
    "haproc/config/kafka.py",
    "haproc/config/redis.py",
    "haproc/engine/status.py",
    "haproc/engine/interface.py",
    "haproc/engine/errors.py",
    "haproc/membership/state.py",
    "haproc/membership/insync.py",
    "haproc/membership/detector.py",
    "haproc/membership/envelope.py",
    "haproc/membership/exchange.py",
    "haproc/membership/judgement.py",
    "haproc/membership/draining.py",
    "haproc/membership/drift.py",
    "haproc/membership/messages.py",
    "haproc/membership/view.py",
    "haproc/membership/roster.py",
    "haproc/replicate/operation.py",
    "haproc/replicate/window.py",
    "haproc/replicate/definitions.py",
    "haproc/replicate/progress.py",
    "haproc/replicate/schedule.py",
    "haproc/replicate/coalesce.py",
    "haproc/replicate/claims.py",
    "haproc/replicate/abandon.py",
    "haproc/replicate/computed.py",
    "haproc/replicate/failures.py",
    "haproc/replicate/concern.py",
    "haproc/failure.py",
    "haproc/replicate/divergence.py",
    "haproc/replicate/checks.py",
    "haproc/replicate/standing.py",
    "haproc/replicate/verification.py",
    "haproc/replicate/steps.py",
    "haproc/replicate/roster.py",
    "haproc/replicate/trimming.py",
    "haproc/route/model.py",
    "haproc/doors/statuses.py",
    "haproc/route/freshness.py",
    "haproc/route/pieces.py",
    "haclient/exceptions.py",
    "haclient/breaker.py",
    "haclient/failover.py",
    "haclient/order.py",
    "haclient/statements.py",
    "haclient/hedging.py",
    "haclient/freshness.py",
    "haclient/settings.py",
    "haclient/topology.py",
)
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
"""What decides nothing and makes a decision depend on more than its arguments."""

ORDER = (
    "classify",
    "pin",
    "witness",
    "engine",
    "config",
    "failure",
    "membership",
    "drift_watch",
    "replicate",
    "faults",
    "route",
    "doors",
    "presence",
    "maintenance",
    "waiting",
    "node",
    "ring",
    "cli",
    "__main__",
)
"""haproc's folders and single modules; each imports only what stands before it."""


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of every module that a file imports, inside functions too."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            if module == "haproc":  # "from haproc import cli" means haproc.cli
                yield from (f"haproc.{alias.name}" for alias in node.names)
            else:
                yield module


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def decision_files(pattern: str) -> list[Path]:
    return sorted(ROOT.glob(pattern))


@pytest.mark.parametrize("pattern", DECISIONS)
def test_decisions_import_nothing_of_the_world(pattern: str) -> None:
    files = decision_files(pattern)
    assert files, f"{pattern} names no file; correct the list"
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if name.partition(".")[0] in WORLD
    ]
    assert found == []


def test_decisions_import_only_decisions_of_ours() -> None:
    pure = {path for pattern in DECISIONS for path in decision_files(pattern)}
    found = []
    for path in sorted(pure):
        for name in imports(path):
            file = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith(("haproc.", "haclient.")) and file.exists() and file not in pure:
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    assert found == []


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("dmq", {"haproc", "haclient"}),
        ("haclient", {"haproc", "dmq"}),
        ("haproc", {"haclient"}),
    ],
)
def test_package_does_not_import_the_other(package: str, forbidden: set[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in imports(path)
        if name.partition(".")[0] in forbidden | {"tests", "bench", "scripts"}
    ]
    assert found == []


def part(name: str) -> str | None:
    """Return which of haproc's parts a module belongs to."""
    _, _, rest = name.partition(".")
    return rest.split(".")[0] if name.startswith("haproc.") else None


def test_haproc_parts_are_all_in_the_order() -> None:
    parts = {
        path.relative_to(ROOT / "haproc").parts[0].removesuffix(".py") for path in sources("haproc")
    }
    assert parts - {"__init__"} == set(ORDER)


def test_haproc_arrows_run_one_way() -> None:
    upward = set()
    for path in sources("haproc"):
        inside = path.relative_to(ROOT).with_suffix("").parts
        mine = part(".".join(inside))
        for name in imports(path):
            theirs = part(name)
            if mine not in ORDER or theirs not in ORDER or mine == theirs:
                continue
            if ORDER.index(theirs) > ORDER.index(mine):
                upward.add((str(path.relative_to(ROOT)), name))
    assert upward == set()
