"""The log's records about the rows of computed operations, and the cluster that computes them."""

from __future__ import annotations

from dataclasses import replace

from haproc.engine.interface import Settings
from haproc.replicate.apply.materialise import settings_of_query
from haproc.replicate.log_state.computations import (
    Computations,
    RowsLocation,
    exhausted,
    responsible,
)
from haproc.replicate.records.rows import ApplicationFailure, ComputedPlan, Passed, QueryWrite, Rows
from tests.unit.kept_records import INSERT

RING = ("a", "b", "c")
NO_MEMORY = ApplicationFailure("OUT_OF_MEMORY", "53200", "no memory")


def rows(offset: int, by: str = "a", count: int = 1) -> Rows:
    return Rows(offset, f"op{offset}", by, 0, count)


def passed(offset: int, by: str) -> Passed:
    return Passed(offset, f"op{offset}", by, 0, NO_MEMORY)


def test_first_rows_record_in_the_log_counts() -> None:
    computations = Computations()
    assert computations.see(7, rows(5, "b", 2))
    assert not computations.see(8, rows(5, "a", 3))
    assert computations.found(5) == RowsLocation(7, 2, None)
    assert computations.found(6) is None


def test_passed_records_read_again_count_once_and_end_with_the_rows() -> None:
    computations = Computations()
    for place, by in ((6, "a"), (6, "a"), (7, "b"), (9, "a")):
        computations.see_passed(place, passed(5, by))
    assert computations.passes(5) == {"a": 2, "b": 1}
    assert computations.trouble(5) == (3, "a: OUT_OF_MEMORY: no memory")
    computations.see(10, rows(5))
    computations.see_passed(11, passed(5, "c"))
    assert computations.passes(5) == {}
    assert computations.trouble(5) == (0, "")


def test_forgotten_offsets_have_no_rows_and_no_passes() -> None:
    computations = Computations()
    for offset in (3, 5):
        computations.see(10 + offset, rows(offset))
        computations.see_passed(20, passed(offset + 1, "a"))
    computations.forget(5)
    assert (computations.found(3), computations.passes(4)) == (None, {})
    assert computations.found(5) is not None and computations.passes(6) == {"a": 1}


def test_origin_is_responsible_and_then_the_next_in_ring_order_with_the_fewest_passes() -> None:
    assert responsible(RING, "b", {}) == "b"
    assert responsible(RING, "b", {"b": 1}) == "c"
    assert responsible(RING, "b", {"b": 1, "c": 1}) == "a"
    assert responsible(RING, "b", {"a": 1, "b": 1, "c": 1}) == "b"


def test_origin_that_left_the_ring_is_responsible_until_it_is_passed() -> None:
    assert responsible(RING, "x", {}) == "x"
    assert responsible(RING, "x", {"x": 1}) == "a"


def test_query_is_exhausted_when_every_trying_cluster_has_failed_often_enough() -> None:
    assert exhausted(["a", "b"], {"a": 8, "b": 9}, 8)
    assert not exhausted(["a", "b", "c"], {"a": 8, "b": 9}, 8)
    assert not exhausted(["a", "b"], {"a": 8, "b": 7}, 8)


def test_query_runs_under_the_settings_of_its_client_and_the_operation_under_its_own() -> None:
    confs = (("spark.sql.shuffle.partitions", "3"),)
    own = (("spark.sql.legacy.sizeOfNull", "true"),)
    op = replace(INSERT, settings=Settings("c", "s", confs=confs))
    for write in (QueryWrite("INSERT INTO t SELECT 1", 14, confs=own), ComputedPlan(b"", b"")):
        settings = settings_of_query(replace(op, write=write))
        assert settings == replace(op.settings, confs=(*write.confs, *confs))
    assert settings_of_query(op) == op.settings
