"""Tests of PySpark's own client on a real ring: its writes are on all clusters, once and equal."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from haproc import protos
from haproc.ring.runtime import cache_folder
from tests.integration.pyspark_program import Program
from tests.rig import Rig

pytestmark = pytest.mark.spark

_base = protos.base
LATER = "4.3.0"
"""The newest client that works; the servers have an older one."""
INSTALL_S = 600
SERVICE = "/spark.connect.SparkConnectService/"

FURNISHED = """
import pandas as pd; import pyarrow as pa
ids = spark.range(6)
named = ids.selectExpr("id", "concat('n', id) AS name", "CAST(id % 2 AS INT) AS part")
named.createOrReplaceTempView("staged")
spark.udf.register("shout", lambda text: text.upper(), "string")
drawn = named.withColumn("name", F.concat("name", F.rand().cast("string")))
spoken = spark.sql("SELECT id, shout(name) AS name, part FROM staged")
own = spark.createDataFrame([(7, "own", 1)], "id BIGINT, name STRING, part INT")
pandas = spark.createDataFrame(pd.DataFrame({"id": [8], "name": ["pandas"], "part": [0]}))
arrow = spark.createDataFrame(pa.table({"id": [9], "name": ["arrow"], "part": [1]}))
"""
"""The sources of the writes: deterministic, random, of the session, and of the program itself."""

SAVED = """
named.write.format("delta").partitionBy("part").saveAsTable("A")
own.write.mode("append").saveAsTable("A")
own.write.mode("ignore").saveAsTable("A")
spoken.write.insertInto("A")
drawn.write.mode("append").saveAsTable("A")
pandas.withColumn("part", F.expr("int(part)")).write.insertInto("A")
arrow.withColumn("part", F.expr("int(part)")).write.mode("append").saveAsTable("A")
named.where("part = 0").write.mode("overwrite").insertInto("A", overwrite=False)
named.write.mode("error").saveAsTable("F")
own.write.mode("overwrite").saveAsTable("F")
"""
WRITTEN_TO = """
drawn.writeTo("B").using("delta").partitionedBy("part").tableProperty("owner", "x").create()
named.writeTo("B").append()
own.writeTo("B").overwrite(F.col("part") == 1)
named.where("part = 0").writeTo("B").overwritePartitions()
spark.sql("CREATE TABLE C (id BIGINT, name STRING, part INT) USING delta CLUSTER BY (id)")
named.writeTo("C").append()
drawn.writeTo("C").using("delta").tableProperty("k", "v").replace()
spoken.writeTo("C").using("delta").createOrReplace()
merge = drawn.alias("s").mergeInto("C", F.expr("s.id = C.id")).whenMatched().updateAll()
merge.whenNotMatched().insertAll().merge()
"""
IN_SQL = """
spark.sql("INSERT INTO C VALUES (?, ?, 3)", args=[20, "it's"])
spark.sql("INSERT INTO C VALUES (:id, :name, 4)", args=dict(id=21, name=None))
spark.sql("INSERT INTO C SELECT * FROM {rows} WHERE rand() < 2", rows=named)
spark.sql("UPDATE C SET name = concat(name, '!') WHERE part = 0")
spark.sql("CREATE TABLE D USING delta AS SELECT id, uuid() AS u FROM staged")
made = spark.catalog.createTable("E", schema=named.schema, source="delta")
spoken.writeTo("E").append()
"""


@contextmanager
def program(
    rig: Rig, order: str, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Give an unmodified client that has these HAProcs, in this order."""
    addresses = ",".join(rig.door(name).replace("localhost", "127.0.0.1") for name in order)
    made = Program(f"ipv4:{addresses}", environment)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.thorough
def test_all_ways_of_writing_leave_equal_tables(rig: Rig) -> None:
    with program(rig, "ab") as client:
        write_in_every_way(rig, client)


@pytest.mark.thorough
def test_later_pyspark_leaves_equal_tables_in_all_ways_of_writing(rig: Rig) -> None:
    with program(rig, "ab", {"PYTHONPATH": str(installed(LATER))}) as client:
        assert client.run('__import__("pyspark").__version__') == LATER
        write_in_every_way(rig, client)


def installed(version: str) -> Path:
    """Return a folder with the Python part of this PySpark version; it is downloaded once."""
    folder = cache_folder() / "pyspark" / version
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            target = Path(temporary, version)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--no-compile", "--target", str(target), f"pyspark=={version}"]
            subprocess.run(command, check=True, timeout=INSTALL_S)
            shutil.rmtree(target / "pyspark" / "jars")
            target.rename(folder)
    return folder


def write_in_every_way(rig: Rig, client: Program) -> None:
    schema = f"ways_{uuid.uuid4().hex[:8]}"
    client.run(f'spark.sql("CREATE SCHEMA {schema}")')
    client.run(f'spark.catalog.setCurrentDatabase("{schema}")')
    for line in (FURNISHED + SAVED + WRITTEN_TO + IN_SQL).split("\n"):
        print(line)
        client.run(line or "None")
    tables = [f"{schema}.{letter}" for letter in "ABCDEF"]
    rig.check_equal(*tables)
    for table in tables:
        # Partitions, clustering and properties, too.
        assert rig.everywhere(f"DESCRIBE TABLE {table}")
        assert rig.everywhere(f"SHOW TBLPROPERTIES {table}")


@pytest.mark.thorough
def test_program_whose_haproc_is_drained_during_a_write_continues_at_the_next_haproc(
    rig: Rig,
) -> None:
    table = rig.table("id BIGINT")
    slow = 'F.udf(lambda x: (__import__("time").sleep(0.2), x)[1], "long")'
    with program(rig, "ab") as client:
        client.run('spark.range(3).createOrReplaceTempView("v")')
        client.run('spark.conf.set("spark.sql.ansi.enabled", "false")')
        client.run(f"slow = {slow}")
        client.send(
            f'spark.range(0, 20, 1, 1).select(slow("id").alias("id")).writeTo("{table}").append()'
        )
        time.sleep(1)  # it is under way
        asyncio.run(rig.drain("a"))
        try:
            assert client.answer() is None
            query = "SELECT _metadata.file_path LIKE '%/clusters/b/%', 1/0 FROM"
            assert client.run(f'spark.sql("{query} {table} LIMIT 1").collect()') == [[True, None]]
            assert client.run('spark.table("v").count()') == 3
        finally:
            rig.up()
    assert rig.everywhere(f"SELECT count(*), sum(id) FROM {table}") == [(20, 190)]


def test_write_that_is_sent_to_two_haprocs_is_applied_once(rig: Rig) -> None:
    table, session, operation = rig.table(), str(uuid.uuid4()), str(uuid.uuid4())
    request = _base.ExecutePlanRequest(session_id=session, operation_id=operation)
    request.user_context.user_id = "ann"
    sql = f"INSERT INTO {table} VALUES (1, 'once')"
    request.plan.command.sql_command.input.sql.query = sql
    option = request.request_options.add()
    option.reattach_options.reattachable = True
    sent = request.SerializeToString()
    for name in "aba":
        with grpc.insecure_channel(rig.door(name)) as channel:
            stream = channel.unary_stream(SERVICE + "ExecutePlan")(sent, timeout=60)
            assert b"".join(stream)
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "once")]
