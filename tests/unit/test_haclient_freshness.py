"""What a connection remembers of what it wrote and saw, and what it sends of that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import haclient
from haclient.settings import NOTHING_SEEN, SeenOffsets

answers_s = st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(0, 50)))


@given(answers_s, st.integers(0, 50))
def test_seen_never_forgets_what_an_answer_showed(
    answers: list[tuple[str, int]], handed_over: int
) -> None:
    seen = SeenOffsets(handed_over)
    for cluster, offset in answers:
        seen = seen.after(cluster, offset)
    assert seen.token == max([handed_over, *(offset for _, offset in answers)])
    for name in ("a", "b", "c"):
        told = [offset for cluster, offset in answers if cluster != name]
        fields = seen.fields("session")
        others = [offset for cluster, offset in fields.get("seen", {}).items() if cluster != name]
        assert max([fields.get("after_offset", 0), *others]) == max([handed_over, *told])


@pytest.mark.parametrize("offset", [None, True, "7", 7.0])
def test_seen_takes_nothing_from_an_answer_without_a_token(offset: object) -> None:
    assert SeenOffsets(3).after("a", offset) == SeenOffsets(3)


def test_nothing_is_sent_for_level_any_or_before_anything_was_seen() -> None:
    assert SeenOffsets(3, {"a": 4}).fields("any") == {}
    assert NOTHING_SEEN.fields("session") == {}
    assert SeenOffsets(3, {"a": 4}).fields(None) == {"after_offset": 3, "seen": {"a": 4}}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"consistency": "strong"}, "any, bounded, session, linearizable, not 'strong'"),
        ({"acceptable_offset_lag": -1}, "acceptable_offset_lag must be a whole number"),
        ({"after_offset": 1.5}, "after_offset must be a whole number"),
    ],
)
def test_connect_refuses_what_is_no_level(options: dict[str, object], told: str) -> None:
    with pytest.raises(haclient.InterfaceError, match=told):
        haclient.connect("http://a", **options)  # type: ignore[arg-type]
