"""Test that a client's cache at one cluster changes no rows there, in reads and in writes."""

from __future__ import annotations

import pytest

from tests.integration.test_ring_connect import program
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]
LEVELS = ("any", "bounded", "session", "linearizable")


@pytest.mark.thorough
def test_table_cached_at_one_cluster_has_current_reads_and_equal_clusters_after_writes(
    rig: Rig,
) -> None:
    copy = rig.table("n BIGINT, v BIGINT")
    table = f"{copy}_cached"
    rig.run(f"CREATE TABLE {table} (k INT, v INT, p STRING) USING delta PARTITIONED BY (p)")
    rig.run(f"INSERT INTO {table} VALUES (1, 1, 'a'), (2, 2, 'a'), (3, 3, 'b')")
    rig.settled()
    with program(rig, "a") as cached, program(rig, "b") as other:
        for number in (100, 200):  # the second time, rows of the first write are cached
            cached.run(f"query = spark.table('{table}').where('k >= 0')")
            cached.run("query.persist()")
            cached.run(f"spark.sql('CACHE TABLE {table}')")
            assert cached.run("query.count()") == 3
            assert "InMemory" in cached.run("query._explain_string()")
            rows = f"[(1, {number}, 'a'), (4, 100, 'a'), (5, 3, 'b')], 'k INT, v INT, p STRING'"
            other.run(f"spark.createDataFrame({rows}).writeTo('{table}').overwritePartitions()")
            total = (3, number + 103)
            summed = f"SELECT count(*), sum(v) FROM {table}"
            assert rig.run(summed, "a", consistency="linearizable") == [total]
            rig.run(f"INSERT INTO {copy} {summed}", "b")
            cached.run(f"spark.sql('INSERT INTO {copy} {summed}')")
            rig.settled()
            for level in LEVELS:
                assert rig.run(summed, "a", consistency=level) == [total], level
            found = cached.run("[list(row) for row in query.selectExpr('int(sum(v))').collect()]")
            assert found == [[total[1]]]
    expected = sorted(2 * [(3, 203), (3, 303)])
    assert rig.everywhere(f"SELECT * FROM {copy} ORDER BY v") == expected
    rig.check_equal(table, copy)
