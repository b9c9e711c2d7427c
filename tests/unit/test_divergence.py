"""Which cluster is the odd one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.agree.majority import is_odd

OK, NO = "applied", "failed X 42000"


@pytest.mark.parametrize(
    ("outcomes", "origin", "odd"),
    [
        # all say the same
        ({"a": OK, "b": OK, "c": OK}, "a", ""),
        ({"a": NO, "b": NO}, "b", ""),
        ({"a": OK}, "b", ""),
        # the majority is right, even against the origin
        ({"a": OK, "b": NO, "c": OK}, "a", "b"),
        ({"a": NO, "b": OK, "c": OK}, "a", "a"),
        ({"a": OK, "b": OK, "c": NO, "d": OK}, "c", "c"),
        # between equal numbers the origin is
        ({"a": OK, "b": NO}, "a", "b"),
        ({"a": OK, "b": NO}, "b", "a"),
        ({"a": OK, "b": OK, "c": NO, "d": NO}, "d", "ab"),
        ({"a": OK, "b": NO, "c": "failed Y"}, "b", "ac"),
        # ... and if it is not known what the origin met, nobody is
        ({"a": OK, "b": NO}, "c", ""),
        # ... nor one of the strongest if the origin is of none of them
        ({"a": OK, "b": OK, "c": NO, "d": NO, "e": "failed Y"}, "e", "e"),
    ],
)
def test_is_odd_outcomes_name_the_clusters_that_differ(
    outcomes: dict[str, str], origin: str, odd: str
) -> None:
    assert "".join(name for name in outcomes if is_odd(name, outcomes, origin)) == odd


@given(
    st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from([OK, NO, "failed Y"]), min_size=1),
    st.sampled_from("abcdefg"),
)
def test_is_odd_never_all_and_never_some_of_those_who_agree(
    outcomes: dict[str, str], origin: str
) -> None:
    odd = {name for name in outcomes if is_odd(name, outcomes, origin)}
    assert odd < outcomes.keys()
    odd_words = {outcomes[name] for name in odd}
    assert all(name in odd for name, word in outcomes.items() if word in odd_words)
    if len(set(outcomes.values())) == 1:
        assert not odd
