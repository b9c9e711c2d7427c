"""Tests of the check that a Spark server runs with all of HAProc's plugin."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from haproc import protos
from haproc.engine import server
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass
from haproc.ring import runtime
from haproc.ring.process import free_port
from haproc.ring.settings import EXTENSIONS
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import rows

pytestmark = [pytest.mark.spark, pytest.mark.thorough]
ALONE = {server.EXTENSION_SETTING: EXTENSIONS.partition(",")[0]}


@asynccontextmanager
async def engine_of(folder: Path, settings: dict[str, str]) -> AsyncIterator[SparkConnectEngine]:
    """Start a server with these settings added to its own; an empty value removes a setting."""
    spark = LocalSpark("other", folder, free_port(), uuid.uuid4().hex, progress=print)
    chosen = spark.settings | settings
    spark.settings = {key: value for key, value in chosen.items() if value}
    try:
        await spark.start(warm=False)
        async with aclosing(
            SparkConnectEngine(address_of(spark), ring="ring", cluster="a")
        ) as engine:
            yield engine
    finally:
        await asyncio.to_thread(spark.kill)


async def lacking(folder: Path, settings: dict[str, str]) -> str:
    """Return the message about the plugin that a server with these settings lacks."""
    async with engine_of(folder, settings) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.probe(timeout_s=120)
    assert (caught.value.kind, caught.value.error_class) == (
        ErrorKind.ENVIRONMENT,
        ErrorClass.PLUGIN_MISSING,
    )
    return caught.value.message


OTHER = """
package other;

public final class Reader implements org.apache.spark.sql.connect.plugin.RelationPlugin {
    @Override
    public java.util.Optional<org.apache.spark.sql.catalyst.plans.logical.LogicalPlan> transform(
            byte[] relation, org.apache.spark.sql.connect.planner.SparkConnectPlanner planner) {
        boolean meant = new String(relation).contains("other/asked");
        return meant ? java.util.Optional.of(planner.session().range(3).logicalPlan())
                : java.util.Optional.empty();
    }
}
"""


@pytest.mark.parametrize(
    "order", [["other.Reader", server.READER], [server.READER, "other.Reader"]]
)
async def test_reader_works_beside_another_relation_plugin(
    order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar, source = runtime.jar(), tmp_path / "Reader.java"
    source.write_text(OTHER)
    compiler = next(runtime._compilers(runtime.silent))
    on = runtime._class_path(runtime.delta_jars())
    made = runtime.run_java([*compiler, "-cp", on, "-d", str(tmp_path / "made"), str(source)])
    assert made.returncode == 0, made.stdout
    delta = runtime.delta_jars()
    monkeypatch.setattr(runtime, "jar", lambda _: jar)
    monkeypatch.setattr(runtime, "delta_jars", lambda _: [*delta, tmp_path / "made"])
    async with engine_of(tmp_path / "spark", {server.READER_SETTING: ",".join(order)}) as engine:
        await engine.probe(timeout_s=120)
        session = engine.session("both")
        plan = protos.base.Plan()
        plan.root.extension.type_url = "other/asked"
        assert await rows(session, SparkPlan(plan.SerializeToString())) == [(0,), (1,), (2,)]
        assert '"OneRowRelation"' in await session.reading(SqlText("SELECT 1"), timeout_s=60)


async def test_cluster_without_the_reader_is_not_served(tmp_path: Path) -> None:
    error_text = await lacking(tmp_path, {server.READER_SETTING: ""})
    assert "no haproc.spark.Reader in spark.connect.extensions.relation.classes" in error_text
    assert "haproc spark-jar" in error_text


async def test_cluster_without_the_extension_is_not_served(tmp_path: Path) -> None:
    error_text = await lacking(tmp_path, ALONE)
    assert "no haproc.spark.Extension in spark.sql.extensions" in error_text


async def test_cluster_without_the_jar_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "jar", lambda _: tmp_path / "none.jar")
    error_text = await lacking(tmp_path, {})
    assert (
        "cannot be loaded (haproc.spark.Reader)" in error_text and "haproc spark-jar" in error_text
    )


async def test_cluster_without_delta_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = runtime.jar()
    monkeypatch.setattr(runtime, "jar", lambda _: jar)
    monkeypatch.setattr(runtime, "delta_jars", lambda _: [])
    settings = {server.EXTENSION_SETTING: server.CLASS, "spark.sql.catalog.spark_catalog": ""}
    assert "Delta Lake" in await lacking(tmp_path, settings)
