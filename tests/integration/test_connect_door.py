"""Tests of PySpark's own client in front of one HAProc and a real Spark."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

from dmq import MemoryKeyValueStore
from haproc.config.model import Address, ClusterConfig, Config
from haproc.config.sections import User
from haproc.config.shares import Shares
from haproc.config.tls import Tls, read_certificates
from haproc.engine.interface import EngineAddress
from haproc.metrics import Metrics
from haproc.node.doors import connect_door
from haproc.ring.making import CERTIFICATE, make_access
from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark
from haproc.route.offload import Inline
from haproc.statements.registry import Registry
from haproc.statements.request_admission import RequestAdmission
from haproc.statements.store import ResultStore
from tests.integration.conftest import address_of
from tests.integration.one_cluster import one_cluster
from tests.integration.pyspark_program import FailedError, Program

pytestmark = pytest.mark.spark
Work: TypeAlias = Callable[..., None]
AsyncTest: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def door(spark: LocalSpark, folder: Path, **settings: Any) -> AsyncIterator[int]:
    """Give the port of an open door."""
    metrics = Metrics("ring", "a", ["READY"])
    begins = settings.get("session_defaults", ())
    async with one_cluster(address_of(spark), session_defaults=begins) as (service, _):
        here = ClusterConfig(
            "a",
            Address("127.0.0.1", free_port()),
            Address("127.0.0.1", free_port()),
            EngineAddress("127.0.0.1", spark.port, spark.token),
            connect=Address("127.0.0.1", free_port()),
        )
        config = Config("ring", "memory:", (here,), "secret", folder, **settings)
        gate = RequestAdmission(config, metrics)
        results = ResultStore(folder / "results", Shares(1 << 20))
        registry = Registry(service, results, config, gate, metrics)
        store, tls = MemoryKeyValueStore(), read_certificates(config.tls)
        listener = connect_door(config, "a", service, registry, Inline(), store, tls)
        assert listener is not None
        await listener.open()
        try:
            yield listener.port
        finally:
            await listener.aclose()
            await registry.aclose()


async def run_beside(
    work: Callable[[Program], None], port: int, parameters: str = "", **environment: str
) -> None:
    """Run a program in a thread, beside the event loop that serves it."""

    def run() -> None:
        program = Program(f"sc://localhost:{port}/;{parameters}", environment)
        try:
            work(program)
        finally:
            program.end()

    await asyncio.to_thread(run)


def behind_a_door(parameters: str = "", **settings: Any) -> Callable[[Work], AsyncTest]:
    """Return a decorator that makes a test of what a program does behind a door.

    The work's first parameter is the program; the others are the test's fixtures.
    """

    def decorated(work: Work) -> AsyncTest:
        _, *others = inspect.signature(work).parameters

        @functools.wraps(work)
        async def test(spark: LocalSpark, tmp_path: Path, **fixtures: Any) -> None:
            found = {"spark": spark, "tmp_path": tmp_path, **fixtures}
            given = {name: found[name] for name in others}
            async with door(spark, tmp_path, **settings) as port:
                await run_beside(lambda program: work(program, **given), port, parameters)

        names = dict.fromkeys(["spark", "tmp_path", *others])
        fixtures = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return test

    return decorated


@behind_a_door()
def test_program_queries_writes_and_changes_its_session(program: Program, schema: str) -> None:
    run = program.run
    assert run('spark.sql("SELECT 1 AS a").collect()') == [[1]]
    assert run("spark.range(10).count()") == 10
    assert run('spark.sql("SELECT :a + 1", args={"a": 3}).collect()') == [[4]]

    run(f'spark.sql("CREATE TABLE {schema}.t (a INT, b STRING) USING delta")')
    run(f"spark.sql(\"INSERT INTO {schema}.t VALUES (1, 'x')\")")
    run(f'spark.sql("INSERT INTO {schema}.t VALUES (?, ?)", args=[2, "y"])')
    run(f'spark.createDataFrame([(3, "z")], "a INT, b STRING").writeTo("{schema}.t").append()')
    assert run(f'spark.table("{schema}.t").orderBy("a").collect()') == [
        [1, "x"],
        [2, "y"],
        [3, "z"],
    ]
    changed = run(f'spark.sql("DELETE FROM {schema}.t WHERE a = 1").collect()')
    assert changed == [[1]]

    run('spark.range(3).createOrReplaceTempView("v")')
    run('spark.udf.register("plus", lambda x: x + 1, "long")')
    assert run('spark.sql("SELECT sum(plus(id)) FROM v").collect()') == [[6]]
    run(f'spark.catalog.setCurrentDatabase("{schema}")')
    run("spark.sql(\"INSERT INTO t SELECT 4, 'w'\")")
    assert run('spark.table("t").count()') == 3


@pytest.mark.thorough
async def test_sql_at_the_root_of_a_plan_has_the_effect_and_answer_of_plain_spark(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    """PySpark sends such SQL as a command; other clients send it as a relation, as here."""

    def sent_raw(program: Program, table: str) -> list[Any]:
        run = program.run
        run(f'spark.sql("CREATE TABLE {schema}.{table} (a INT, b STRING) USING delta")')
        run("from pyspark.sql.connect import proto")
        observed = []
        for sql in (
            f"INSERT INTO {schema}.{table} VALUES (1, 'x'), (2, 'y')",
            f"UPDATE {schema}.{table} SET b = 'z' WHERE a = 2",
            f"DELETE FROM {schema}.{table} WHERE a = 1",
            f"SELECT * FROM {schema}.{table}",
        ):
            run("plan = proto.Plan()")
            run(f'plan.root.sql.query = "{sql}"')
            run("found, shape, _ = spark.client.to_table(plan, {})")
            observed.append([run("found.to_pylist()"), run("str(found.schema)"), run("str(shape)")])
        observed.append(run(f'spark.table("{schema}.{table}").collect()'))
        return observed

    def direct() -> list[Any]:
        program = Program(f"sc://localhost:{spark.port}/;token={spark.token}")
        try:
            return sent_raw(program, "direct")
        finally:
            program.end()

    expected = await asyncio.to_thread(direct)
    assert expected[-1] == [[2, "z"]]

    def work(program: Program) -> None:
        assert sent_raw(program, "through") == expected

    async with door(spark, tmp_path) as port:
        await run_beside(work, port)


@behind_a_door()
def test_pool_of_a_user_cannot_be_changed_by_the_session(program: Program) -> None:
    query = 'spark.sql("SET spark.scheduler.pool").collect()'
    ((_, pool),) = program.run(query)
    assert pool.startswith("user/")
    for change in (
        'spark.conf.set("spark.scheduler.pool", "mine")',
        'spark.sql("SET spark.scheduler.pool = mine")',
        'spark.conf.unset("spark.scheduler.pool")',
        'spark.sql("RESET spark.scheduler.pool")',
        'spark.sql("RESET")',
    ):
        program.run(change)
        assert program.run(query) == [["spark.scheduler.pool", pool]], change


@behind_a_door()
def test_errors_have_the_exception_class_that_plain_spark_raises(program: Program) -> None:
    for line, kind, message in (
        ('spark.table("nope").collect()', "AnalysisException", "TABLE_OR_VIEW_NOT_FOUND"),
        ('spark.sql("INSERT INTO nope SELECT 1")', "AnalysisException", "TABLE_OR_VIEW_NOT"),
        ('spark.sql("SELECT 1/0").collect()', "ArithmeticException", "DIVIDE_BY_ZERO"),
        (
            'spark.range(1).write.parquet("/tmp/x")',
            "UnsupportedOperationException",
            "HAPROC_PATH",
        ),
        (
            'spark.readStream.format("rate").load().isStreaming',
            "UnsupportedOperationException",
            "HAPROC_STREAMING",
        ),
    ):
        with pytest.raises(FailedError) as failed:
            program.run(line)
        assert failed.value.kind == kind and message in failed.value.message


@pytest.mark.thorough
async def test_errors_of_failed_writes_equal_those_of_plain_spark(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    """Class, condition, SQLSTATE, parameters and places are those of Spark's own exception."""
    lines = (
        'spark.sql("CREATE TABLE z (a INTT)")',
        'spark.sql("CREATE TABLE z (a INTERVAL YEAR) USING delta")',
        'spark.sql("ALTER TABLE t DROP COLUMN a")',
        'spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING")',
        'spark.sql("INSERT INTO t VALUES (1)")',
        'spark.sql("INSERT INTO nosuch VALUES (1)")',
        'spark.sql("USE nosuch")',
        'spark.sql("SET spark.sql.session.timeZone = Nowhere")',
        'spark.range(1).write.format("delta").bucketBy(2, "id").saveAsTable("bucketed")',
        "spark.sql(\"SELECT 7 AS a, 'x' AS b\").write.format('delta').mode('overwrite')"
        ".option('replaceWhere', 'a = 1').saveAsTable('t')",
        "spark.range(1).select(F.udf(lambda x: 1 // x, 'int')('id').alias('a'))"
        ".writeTo('of_one').append()",
    )

    def all_errors(program: Program) -> list[tuple[Any, ...]]:
        program.run(f'spark.sql("USE {schema}")')
        observed = []
        for line in lines:
            with pytest.raises(FailedError) as failed:
                program.run(line)
            observed.append((line, failed.value.kind, *failed.value.details))
        return observed

    def direct() -> list[tuple[Any, ...]]:
        program = Program(f"sc://localhost:{spark.port}/;token={spark.token}")
        try:
            program.run(f'spark.sql("CREATE TABLE {schema}.t (a INT, b STRING) USING delta")')
            program.run(f'spark.sql("CREATE TABLE {schema}.of_one (a INT) USING delta")')
            return all_errors(program)
        finally:
            program.end()

    expected = await asyncio.to_thread(direct)

    def work(program: Program) -> None:
        assert all_errors(program) == expected
        for refused, kind in (
            ('spark.sql("SELEC 1")', "ParseException"),
            ('spark.udf.registerJavaFunction("f", "no.Such", "int")', "AnalysisException"),
            ('spark.conf.set("spark.sql.warehouse.dir", "x")', "AnalysisException"),
        ):
            with pytest.raises(FailedError) as failed:
                program.run(refused)
            assert failed.value.kind == kind

    async with door(spark, tmp_path) as port:
        await run_beside(work, port)


@pytest.mark.thorough
async def test_session_has_its_files_and_checkpoints_but_no_jars(
    spark: LocalSpark, tmp_path: Path
) -> None:
    module = tmp_path / "shipped.py"
    module.write_text("def ten(x):\n    return 10 * x\n")

    def work(program: Program) -> None:
        run = program.run
        run(f'spark.addArtifacts("{module}", pyfile=True)')
        run('ten = F.udf(lambda x: __import__("shipped").ten(x), "long")')
        assert run('spark.range(3).select(ten("id")).collect()') == [[0], [10], [20]]
        assert run("spark.range(3).localCheckpoint().count()") == 3
        jar = tmp_path / "x.jar"
        jar.write_bytes(b"PK")
        with pytest.raises(FailedError, match="HAPROC_JVM_CODE"):
            run(f'spark.addArtifacts("{jar}")')

    async with door(spark, tmp_path) as port:
        await run_beside(work, port)


async def test_user_is_authenticated_by_a_token_over_tls(spark: LocalSpark, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    files = make_access(tmp_path, ["alice"])["tls"]
    tls = Tls(**{key: tmp_path / file for key, file in files.items()})
    users = (User("alice", "the token of alice"),)

    def known(program: Program) -> None:
        assert program.run("spark.range(2).count()") == 2

    def unknown(program: Program) -> None:
        with pytest.raises(FailedError, match="HAPROC_UNAUTHENTICATED"):
            program.run("spark.range(2).count()")

    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / CERTIFICATE)}
    async with door(spark, tmp_path, tls=tls, users=users) as port:
        await run_beside(known, port, "use_ssl=true;token=the%20token%20of%20alice", **trust)
        await run_beside(unknown, port, "use_ssl=true;token=another", **trust)


ASIDE = (
    "import threading, time; done = []; aside = lambda work: threading.Thread("
    "target=lambda: done.append(_outcome(work)), daemon=True).start()"
)
OUTCOME = """
def _outcome(work):
    try:
        return work()
    except Exception as error:
        return str(error)
"""


@pytest.mark.thorough
@behind_a_door()
def test_interrupt_stops_queries_on_spark_and_revokes_writes(
    program: Program, schema: str, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    run = program.run
    run(f"exec({OUTCOME!r})")
    run(ASIDE)
    run(f'spark.sql("CREATE TABLE {schema}.t (a BIGINT) USING delta")')
    beat = f'__import__("os").write(__import__("os").open("{beats}", 1090), b"x")'
    slow = f'F.udf(lambda x: (__import__("time").sleep(0.05), {beat}, x)[2], "long")'
    run(f"slow = {slow}")
    run(
        "running = lambda: next(each.operation_id for each in "
        "spark.client._get_operation_statuses().operation_statuses "
        "if each.state == 2)"
    )
    for interrupt in (
        "spark.interruptAll()",
        'spark.interruptTag("mine")',
        "spark.interruptOperation(running())",
    ):
        beats.unlink(missing_ok=True)
        run(
            'aside(lambda: (spark.addTag("mine"), '
            'spark.range(0, 400, 1, 1).select(slow("id")).collect()))'
        )
        until(beats.exists)
        assert len(run(interrupt)) == 1
        run("while not done: time.sleep(0.01)")
        assert "OPERATION_CANCELED" in run("done.pop()")
        until_still(beats)
    run(
        'aside(lambda: spark.range(0, 400, 1, 1).select(slow("id").alias("a"))'
        f'.writeTo("{schema}.t").append())'
    )
    beats.unlink()
    until(beats.exists)
    assert len(run("spark.interruptAll()")) == 1
    run("while not done: time.sleep(0.01)")
    assert "HAPROC_REVOKED" in run("done.pop()")
    assert run(f'spark.table("{schema}.t").count()') == 0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def until_still(beats: Path) -> None:
    """Wait until no task appends any more; without an interrupt they would for 20 s."""
    end = time.monotonic() + 10
    size, since = -1, time.monotonic()
    while time.monotonic() - since < 0.7:
        assert time.monotonic() < end, "it goes on"
        if (found := beats.stat().st_size) != size:
            size, since = found, time.monotonic()
        time.sleep(0.02)


async def test_session_is_cloned_and_a_closed_one_stays_closed(
    spark: LocalSpark, tmp_path: Path
) -> None:
    def work(program: Program, port: int) -> None:
        run = program.run
        run('spark.conf.set("haproc.consistency", "any")')
        run('spark.conf.set("spark.sql.ansi.enabled", "false")')
        run('spark.range(3).createOrReplaceTempView("v")')
        run("other = spark.cloneSession()")
        run("first = spark.session_id")
        run('spark.catalog.dropTempView("v")')
        assert run('other.table("v").count()') == 3
        assert run('other.conf.get("haproc.consistency")') == "any"
        assert run('other.conf.get("spark.sql.ansi.enabled")') == "false"
        assert run("other.session_id == first") is False
        run("from pyspark.sql.connect.session import SparkSession as S")
        run("spark.stop()")
        assert run('other.table("v").count()') == 3
        run(f'again = S("sc://localhost:{port}/;session_id=" + first)')
        with pytest.raises(FailedError, match=r"INVALID_HANDLE\.SESSION_CLOSED"):
            run("again.range(1).collect()")
        with pytest.raises(FailedError, match=r"INVALID_HANDLE\.FORMAT"):
            run('other.cloneSession("nonsense")')

    async with door(spark, tmp_path) as port:
        await run_beside(lambda program: work(program, port), port)


@behind_a_door()
def test_status_of_operations_is_their_final_state_or_unknown(
    program: Program, schema: str
) -> None:
    run = program.run
    run(f'spark.sql("CREATE TABLE {schema}.t (a INT) USING delta")')
    run("ids = []; old = spark.client._execute_plan_request_with_metadata")
    run(
        "spark.client._execute_plan_request_with_metadata = "
        "lambda operation_id=None: (ids.append(str(__import__('uuid').uuid4())), "
        "old(operation_id=ids[-1]))[1]"
    )
    observed = (
        "[s.state for s in spark.client._get_operation_statuses(ids[-1:]).operation_statuses]"
    )
    run(f'spark.sql("INSERT INTO {schema}.t VALUES (1)")')
    assert run(observed) == [4]
    with pytest.raises(FailedError):
        run(f'spark.sql("INSERT INTO {schema}.t VALUES (1/0)")')
    assert run(observed) == [5]
    run("ids.append(str(__import__('uuid').uuid4()))")
    assert run(observed) == [1]


async def test_health_is_answered_without_a_token(spark: LocalSpark, tmp_path: Path) -> None:
    users = (User("alice", "the token of alice"),)
    async with (
        door(spark, tmp_path, users=users) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await check(b"\x0a\x01x")
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
