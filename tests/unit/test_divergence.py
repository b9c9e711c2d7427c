"""The clusters that are judged wrong when outcomes differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.agree.findings import is_wrong

OK, NO = "applied", "failed X 42000"


@pytest.mark.parametrize(
    ("outcomes", "absent", "differing"),
    [
        # all say the same
        ({"a": OK, "b": OK, "c": OK}, 0, ""),
        ({"a": NO, "b": NO}, 1, ""),
        ({"a": OK}, 1, ""),
        # the majority is right
        ({"a": OK, "b": NO, "c": OK}, 0, "b"),
        ({"a": OK, "b": OK, "c": NO, "d": OK}, 0, "c"),
        # between equal numbers nobody is proven wrong, whoever the origin was
        ({"a": OK, "b": NO}, 0, ""),
        ({"a": OK, "b": OK, "c": NO, "d": NO}, 0, ""),
        ({"a": OK, "b": NO, "c": "failed Y"}, 0, ""),
        ({"a": OK, "b": OK, "c": NO, "d": NO, "e": "failed Y"}, 0, ""),
        # ... nor by most of a few, when others may say otherwise yet
        ({"a": OK, "b": OK, "c": NO}, 2, ""),
        ({"a": OK, "b": OK, "c": NO}, 0, "c"),
    ],
)
def test_is_wrong_reports_the_clusters_that_differ_from_the_majority(
    outcomes: dict[str, str], absent: int, differing: str
) -> None:
    assert "".join(name for name in outcomes if is_wrong(name, outcomes, absent)) == differing


@given(
    st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from([OK, NO, "failed Y"]), min_size=1),
    st.integers(0, 3),
)
def test_is_wrong_never_holds_for_all_clusters_nor_for_a_part_of_those_with_one_outcome(
    outcomes: dict[str, str], absent: int
) -> None:
    differing = {name for name in outcomes if is_wrong(name, outcomes, absent)}
    assert differing < outcomes.keys()
    wrong_outcomes = {outcomes[name] for name in differing}
    assert all(name in differing for name, word in outcomes.items() if word in wrong_outcomes)
    if len(set(outcomes.values())) == 1:
        assert not differing
