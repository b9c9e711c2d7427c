"""Tests of Spark's own JDBC driver on a real ring: statements, metadata, a failover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig import Rig
from tests.tools.beeline import Beeline

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]


@pytest.fixture
def beeline(rig: Rig) -> Iterator[Beeline]:
    made = Beeline(f"jdbc:sc://{rig.door('a')}")
    yield made
    made.close()


def test_statements_and_table_metadata_work_with_the_jdbc_driver(
    rig: Rig, beeline: Beeline
) -> None:
    beeline.say("DROP SCHEMA IF EXISTS jdbc CASCADE;", "CREATE SCHEMA jdbc;", "USE jdbc;")
    beeline.say("CREATE TABLE orders (id INT COMMENT 'its id', amount DECIMAL(10,2)) USING delta;")
    beeline.say("CREATE VIEW large AS SELECT id FROM orders;")
    beeline.say("INSERT INTO orders VALUES (1, 1.5), (2, NULL);")
    beeline.say("UPDATE orders SET amount = 3 WHERE id = 2;")
    found = beeline.say("SELECT id, amount FROM orders ORDER BY id;")
    assert found[-3:] == ["id,amount", "1,1.50", "2,3.00"]
    assert rig.everywhere("SELECT id FROM jdbc.orders ORDER BY id") == [(1,), (2,)]

    assert "jdbc,spark_catalog" in beeline.say("!metadata getSchemas")
    tables = beeline.say("!tables")
    assert any(line.startswith("spark_catalog,jdbc,orders,TABLE") for line in tables)
    assert any(line.startswith("spark_catalog,jdbc,large,VIEW") for line in tables)
    columns = [line.split(",") for line in beeline.say("!columns orders")]
    assert ["orders", "id", "4", "INT"] in [each[2:6] for each in columns]
    assert any("its id" in each for each in columns)

    output = "\n".join(beeline.say("SELECT * FROM nowhere;"))
    assert "TABLE_OR_VIEW_NOT_FOUND" in output
    output = "\n".join(beeline.say("SET spark.sql.caseSensitive = true;"))
    assert "HAPROC_RESERVED_SETTING" in output
    assert "Cannot find main error class" not in output


def test_connection_continues_when_its_haproc_is_back(rig: Rig, beeline: Beeline) -> None:
    """The driver retries one address; a new connection may use another HAProc."""
    table = rig.table()
    beeline.say("SET spark.sql.shuffle.partitions=3;", f"INSERT INTO {table} VALUES (1, 'x');")
    rig.ring.kill("a", "haproc")
    rig.gone("a")
    other = Beeline(f"jdbc:sc://{rig.door('b')}")
    try:
        assert other.say(f"INSERT INTO {table} VALUES (2, 'x');", f"SELECT max(id) FROM {table};")
    finally:
        other.close()
    rig.start("a")
    beeline.say(f"INSERT INTO {table} VALUES (3, 'x');", timeout_s=240)
    assert beeline.say(f"SELECT id FROM {table} ORDER BY id;")[-3:] == ["1", "2", "3"]
    assert "3" in beeline.say("SET spark.sql.shuffle.partitions;")[-1], "the session's setting"
    assert rig.everywhere(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,)]
