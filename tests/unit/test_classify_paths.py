"""Files that statements name: normal forms and prefixes; names that may mean a temporary view."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.allowed import Paths, place_of
from tests.readings.classified import classified
from tests.unit.path_lists import ALLOWED, PREFIXES, REFUSED

PATHS = Paths(PREFIXES)


@pytest.mark.parametrize("path", ALLOWED)
def test_path_below_a_prefix_is_allowed_in_every_spelling(path: str) -> None:
    assert PATHS.allow(path)


@pytest.mark.parametrize("path", REFUSED)
def test_path_outside_the_prefixes_or_unclear_is_not_allowed(path: str) -> None:
    assert not PATHS.allow(path)
    assert not Paths().allow(path)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "*", "{", "%", ":", "in", "data"])))
def test_normal_form_of_any_path_has_no_parent_step(names: list[str]) -> None:
    place = place_of("/" + "/".join(names))
    assert place is None or not {"..", ".", ""} & set(place.names)


def test_root_as_prefix_allows_its_whole_file_system() -> None:
    assert Paths(("/",)).allow("/etc/passwd")
    assert not Paths(("/",)).allow("file:/etc/passwd")


def test_verb_with_a_unicode_letter_is_read_as_spark_reads_it() -> None:
    assert classified("FROM t ınsert INTO u SELECT 1").writes


@pytest.mark.parametrize(
    ("sql", "bare"),
    [
        ("DROP VIEW v", {"v"}),
        ("DROP VIEW default.v", set()),
        ("DROP VIEW session.v", {"session.v"}),
        ("DROP TABLE system.session.v", {"system.session.v"}),
        ("INSERT INTO v VALUES (1)", {"v"}),
        ("INSERT INTO default.v VALUES (1)", set()),
        ("INSERT INTO t SELECT * FROM v JOIN default.w", {"t"}),
        ("CREATE TABLE t AS SELECT * FROM v", set()),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", set()),
        ("ALTER VIEW v RENAME TO w", {"v"}),
    ],
)
def test_written_names_that_may_mean_a_temporary_view_are_reported(
    sql: str, bare: set[str]
) -> None:
    full = {1: "spark_catalog.default.", 2: "spark_catalog.", 3: ""}
    expected = {full[name.count(".") + 1] + name for name in bare}
    assert classified(sql).bare == expected
