"""Tests that other projects' tools have the same result on a ring as on a Spark alone.

Each tool runs twice: against a HAProc's door, and against the Spark of one cluster, in a schema
that only that cluster has.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.pyspark_program import Program
from tests.rig import Rig
from tests.tools import environment

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

Work = Callable[[str, str, Path], None]
"""Does a tool's work at this Spark Connect server, in this schema, with files in this folder."""


def test_tools_are_installed() -> None:
    """Installing takes minutes the first time, which is too much for another test."""
    assert {"dbt", "sqlmesh"} <= {each.name for each in environment.folder().iterdir()}


def test_dbt_builds_the_same_on_ring_and_spark(rig: Rig, tmp_path: Path) -> None:
    moving = {
        "recent": "looked_on",
        "stamped": "token, chance, loaded_at",
        "by_value": "dbt_scd_id, dbt_updated_at, dbt_valid_from, dbt_valid_to",
    }
    with done_twice(rig, "shop_dbt", tmp_path, dbt) as schemas:
        compare(rig, schemas, moving)
        ring, plain = schemas
        ended = "SELECT id, amount, dbt_valid_to IS NULL AS holds FROM {}.by_value ORDER BY ALL"
        found = rig.everywhere(ended.format(ring))
        assert found == rig.run(ended.format(plain), alone_in(rig))
        assert sum(holds for *_, holds in found) == 5 < len(found)


def dbt(remote: str, schema: str, folder: Path) -> None:
    """Build the project, and again with changed sources and one more column."""
    project = copied("dbt", folder)
    options = ("--profiles-dir", ".", "--project-dir", ".")
    for variables in ("{second: false}", "{second: true}"):
        built = ("build", *options, "--vars", variables)
        environment.run(remote, "dbt", *built, cwd=project, SHOP_SCHEMA=schema)
        shutil.copy(project / "second" / "orders.csv", project / "seeds" / "orders.csv")


def test_sqlmesh_plans_the_same_on_ring_and_spark(rig: Rig, tmp_path: Path) -> None:
    with done_twice(rig, "shop_mesh", tmp_path, sqlmesh) as schemas:
        compare(rig, schemas, {"recent": "looked_on"})


def sqlmesh(remote: str, schema: str, folder: Path) -> None:
    """Plan the project, and again with changed sources and for later days."""
    project = copied("sqlmesh", folder)
    variables = {"SHOP_SCHEMA": schema, "SHOP_STATE": str(folder / "state.db")}
    orders = environment.HERE / "dbt"
    for file, day in (("seeds", "2024-01-04"), ("second", "2024-01-08")):
        load = ("load_orders.py", f"{schema}_raw.orders", str(orders / file / "orders.csv"))
        environment.run(remote, "python", *load)
        plan = ("plan", "--run", "--auto-apply", "--no-prompts", "--execution-time", day)
        environment.run(remote, "sqlmesh", *plan, cwd=project, **variables)


def test_ibis_inserts_and_upserts_the_same_on_ring_and_spark(rig: Rig, tmp_path: Path) -> None:
    with done_twice(rig, "ibis", tmp_path, program("ibis_upsert.py")) as schemas:
        compare(rig, schemas)


def test_batches_are_upserted_the_same_on_ring_and_spark(rig: Rig, tmp_path: Path) -> None:
    with done_twice(rig, "upserts", tmp_path, program("upserts.py")) as schemas:
        compare(rig, schemas)


@pytest.mark.parametrize("how", ["persist", "delta_lake_table"])
def test_splink_finds_the_same_duplicates_on_ring_and_spark(
    rig: Rig, tmp_path: Path, how: str
) -> None:
    with done_twice(rig, f"splink_{how}", tmp_path, program("splink_dedupe.py", how)) as schemas:
        compare(rig, schemas)


def alone_in(rig: Rig) -> str:
    """Return the cluster whose Spark is used without its HAProc."""
    return rig.ring.names[-1]


def program(name: str, *arguments: str) -> Work:
    """Return the work of one of tests/tools/programs."""

    def work(remote: str, schema: str, _: Path) -> None:
        print(environment.run(remote, "python", name, schema, *arguments))

    return work


def copied(project: str, folder: Path) -> Path:
    """Return a copy of one of the projects in tests/tools, which its tool writes into."""
    return shutil.copytree(environment.HERE / project, folder / project)


@contextmanager
def done_twice(rig: Rig, name: str, folder: Path, work: Work) -> Iterator[tuple[str, str]]:
    """Do a tool's work on the ring and on a Spark alone; give both schemas, drop the second."""
    ring, plain = f"{name}_ring", f"{name}_plain"
    server = rig.sparks.sparks[alone_in(rig)]
    alone = f"sc://localhost:{server.port}/;token={server.token}"
    for schema in (ring, plain):
        (folder / schema).mkdir()
    work(f"sc://{rig.door('a')}", ring, folder / ring)
    try:
        work(alone, plain, folder / plain)
        yield ring, plain
    finally:
        client = Program(alone)
        try:
            names = client.run("[each.name for each in spark.catalog.listDatabases()]")
            left = [each for each in names if plain in each]
            for schema in left:
                client.run(f'spark.sql("DROP SCHEMA {schema} CASCADE")')
        finally:
            client.end()


def compare(rig: Rig, schemas: tuple[str, str], moving: Mapping[str, str] | None = None) -> None:
    """Check that both schemas, and all clusters, have equal tables and views.

    ``moving``: columns by table name that may differ from Spark alone, but not between clusters.
    """
    ring, plain = schemas
    names = [row[1] for row in rig.everywhere(f"SHOW TABLES IN {ring}")]
    assert names == [row[1] for row in rig.run(f"SHOW TABLES IN {plain}", alone_in(rig))]
    views = {row[1] for row in rig.everywhere(f"SHOW VIEWS IN {ring}")}
    tables = [f"{ring}.{name}" for name in names if name not in views]
    assert tables or views
    if tables:
        rig.check_equal(*tables)
    for name in names:
        apart = (moving or {}).get(name)
        wanted = f"* EXCEPT ({apart})" if apart else "*"
        look = f"SELECT {wanted} FROM {{}}.{name} ORDER BY ALL"
        found = rig.everywhere(look.format(ring))
        assert found == rig.run(look.format(plain), alone_in(rig)), name
        described = f"DESCRIBE {{}}.{name}"
        assert rig.everywhere(described.format(ring)) == rig.run(
            described.format(plain), alone_in(rig)
        )
