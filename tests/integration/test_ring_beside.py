"""Tests that a table with a long computation delays only operations that touch it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import haclient
from tests.integration.test_ring_connect import program
from tests.rig import PATIENT, Rig

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

QUERY = (
    "SELECT sum(a.id % 7 + b.id % 5) AS s FROM range(0, {n}, 1, {tasks}) a "
    "CROSS JOIN range(0, {n}, 1, 1) b"
)
"""One row computed from millions of rows; that takes two cores a while. It has many short tasks,
because Spark does not interrupt a running task for another pool's turn.
"""
TASKS = 400
N = 5_000
"""Rows of a side. Each of three clusters computes it; 10,000 took ten minutes of two cores."""


@contextmanager
def computing(rig: Rig, order: str, n: int) -> Iterator[tuple[str, threading.Thread]]:
    """Give the name of a table that a client is creating, and the client's thread."""
    name = f"slow_{uuid.uuid4().hex[:8]}"
    sql = f"CREATE TABLE {name} USING delta AS {QUERY.format(n=n, tasks=TASKS)}"

    def make() -> None:
        with rig.cursor(order, **PATIENT) as cursor:
            cursor.execute(sql, timeout_s=600)

    client = threading.Thread(target=make, daemon=True)
    end = rig.log_end()
    client.start()
    rig.wait(lambda: int(rig.status("b")["log_end"]) > end, 60)
    try:
        yield name, client
    finally:
        client.join(600)


def test_long_computation_delays_no_other_table(rig: Rig) -> None:
    table = rig.table()
    with computing(rig, "a", N) as (name, client):
        for number, order in enumerate("ab"):
            rig.run(f"INSERT INTO {table} VALUES ({number}, 'x')", order=order, timeout_s=120)
            count = f"SELECT count(*) FROM {table}"
            found = rig.run(count, order=order, consistency="linearizable", timeout_s=120)
            assert found == [(number + 1,)]
        assert client.is_alive(), "it was over too soon: this shows nothing"
    assert not client.is_alive()
    [(total,)] = rig.everywhere(f"SELECT s FROM {name}")
    assert total == sum(i % 7 for i in range(N)) * N + 2 * N * N
    rig.check_equal(table, name)


def test_long_computation_delays_no_read_of_pyspark(rig: Rig) -> None:
    table = rig.table()
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')")
    with program(rig, "b") as spark:
        spark.run('spark.conf.set("haproc.consistency", "linearizable")')
        with computing(rig, "a", N) as (name, client):
            assert spark.run(f'spark.table("{table}").count()') == 1
            assert spark.run(f'spark.sql("SELECT count(*) FROM {table}").collect()') == [[1]]
            spark.run(f'spark.table("{table}").show()')
            assert client.is_alive(), "it was over too soon: this shows nothing"
    rig.check_equal(table, name)


def test_ddl_of_a_schema_waits_at_its_door_and_delays_no_other_write(rig: Rig) -> None:
    table, schema = rig.table(), f"later_{uuid.uuid4().hex[:8]}"
    with computing(rig, "a", 6_000) as (_, client):
        with pytest.raises(haclient.Error, match="computes a table, and this has to wait for it"):
            rig.run(f"CREATE SCHEMA {schema}", order="b", timeout_s=20)
        rig.run(f"INSERT INTO {table} VALUES (1, 'x')", order="b", timeout_s=120)
        assert client.is_alive(), "it was over too soon: this shows nothing"
    assert (schema,) not in rig.run("SHOW SCHEMAS", order="b")
    rig.run(f"CREATE SCHEMA {schema}", order="b")
    rig.check_equal(table)
    rig.run(f"DROP SCHEMA {schema}", order="b")


def test_haproc_killed_during_a_long_computation_leaves_all_clusters_equal(rig: Rig) -> None:
    table = rig.table()
    with computing(rig, "ab", 2_000) as (name, client):
        time.sleep(2)
        rig.ring.kill("a", "haproc")
        rig.run(f"INSERT INTO {table} VALUES (1, 'x')", order="b", timeout_s=120)
    assert not client.is_alive()
    rig.start("a")
    assert rig.everywhere(f"SELECT count(*) FROM {name}") == [(1,)]
    rig.check_equal(table, name)
