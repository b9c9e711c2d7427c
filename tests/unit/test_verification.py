"""Which clusters hold the same, judged from their checksums.

Docs: docs/design.md, "Poison operations and verification".
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.agree.findings import Finding, compare
from haproc.replicate.records.contents import Checksums

WORDS = {"=": Finding.EQUAL, "x": Finding.DIFFERENT, "?": Finding.UNDECIDED}
WORDS["-"] = Finding.UNAVAILABLE


def records(told: Mapping[str, str]) -> dict[str, Checksums]:
    """Make records of one table's checksums: ``1!`` of a marked cluster, ``E`` for an error."""
    return {
        name: Checksums(
            9,
            name,
            0,
            {} if text == "E" else {"t": text.strip("!")},
            "!" in text,
            "E" * (text == "E"),
        )
        for name, text in told.items()
    }


@pytest.mark.parametrize(
    ("told", "origin", "found"),
    [
        ({"a": "1", "b": "1", "c": "1"}, "a", "==="),
        # the majority is right, even against who asked
        ({"a": "1", "b": "2", "c": "2"}, "a", "x=="),
        # between equal numbers who asked is; else nobody
        ({"a": "1", "b": "2"}, "a", "=x-"),
        ({"a": "1", "b": "2"}, "b", "x=-"),
        ({"a": "1", "b": "2"}, "c", "??-"),
        ({"a": "1", "b": "2", "c": "3"}, "b", "x=x"),
        # one that is known to differ never outvotes one that is not
        ({"a": "1", "b": "2!", "c": "2!"}, "b", "=xx"),
        ({"a": "1", "b": "1!", "c": "1!"}, "b", "==="),
        ({"a": "1", "b": "1", "c": "1!"}, "a", "==="),
        # ... and where all are, the majority decides, but only if all have told
        ({"a": "1!", "b": "2!", "c": "2!"}, "a", "x=="),
        ({"b": "2!", "c": "2!"}, "b", "-??"),
        # nobody is equal without having been compared
        ({"a": "1"}, "a", "?--"),
        ({"a": "1", "b": "E"}, "a", "?--"),
        # what cannot be read is not judged, and judges nobody
        ({"a": "1", "b": "", "c": "1"}, "a", "=?="),
        ({"a": "", "b": "", "c": ""}, "a", "???"),
        # a table that is missing is different
        ({"a": "1", "b": "1", "c": "absent"}, "a", "==x"),
    ],
)
def test_compare_one_table_finds(told: dict[str, str], origin: str, found: str) -> None:
    findings = compare(records(told), "abc", origin)
    assert [findings.clusters[name] for name in "abc"] == [WORDS[letter] for letter in found]


def test_compare_tables_are_judged_one_by_one() -> None:
    told = {
        "a": Checksums(9, "a", 0, {"s": "1", "t": "1"}),
        "b": Checksums(9, "b", 0, {"s": "2", "t": "1"}),
        "c": Checksums(9, "c", 0, {"s": "1", "t": "2", "u": "1"}),
    }
    findings = compare(told, "abc", "a")
    assert findings.different("b") == ["s"]
    assert findings.different("c") == ["t", "u"]
    assert findings.clusters["a"] is Finding.EQUAL


def test_compare_tie_is_named() -> None:
    assert compare(records({"a": "1", "b": "2"}), "abc", "c").tied == ("t",)
    assert compare(records({"a": "1", "b": "2"}), "abc", "a").tied == ()


def test_compare_only_cluster_of_a_ring_is_equal() -> None:
    assert compare(records({"a": "1!"}), "a", "a").clusters == {"a": Finding.EQUAL}


def test_compare_without_tables_is_equal() -> None:
    told = {name: Checksums(9, name, 0, {}) for name in "abc"}
    assert set(compare(told, "abc", "a").clusters.values()) == {Finding.EQUAL}


sums = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2", "1!", "2!", "", "E"]))


@given(sums, st.sampled_from("abcd"))
def test_compare_never_finds_all_different_and_equal_ones_are_found_alike(
    told: dict[str, str], origin: str
) -> None:
    made = records(told)
    found = compare(made, "abcd", origin)
    spoke = [name for name in told if told[name] != "E"]
    if spoke:
        assert any(found.clusters[name] is not Finding.DIFFERENT for name in spoke)
    by_sum: dict[str, set[Finding]] = {}
    for name in spoke:
        by_sum.setdefault(made[name].tables["t"], set()).add(found.tables["t"][name])
    assert all(len(findings) == 1 for findings in by_sum.values())
    unmarked = {made[n].tables["t"] for n in spoke if not made[n].marked and made[n].tables["t"]}
    if len(unmarked) == 1:  # all that count agree: they are right
        (right,) = unmarked
        assert by_sum[right] == {Finding.EQUAL}
