"""The offsets that a connection remembers from its writes and reads, and the fields it sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import haclient
from haclient.settings import NOTHING_SEEN, SeenOffsets

answers_s = st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(0, 50)))


@given(answers_s, st.integers(0, 50))
def test_seen_offsets_never_forget_the_offset_of_an_answer(
    answers: list[tuple[str, int]], handed_over: int
) -> None:
    seen_offsets = SeenOffsets(handed_over)
    for cluster, offset in answers:
        seen_offsets = seen_offsets.after(cluster, offset)
    assert seen_offsets.token == max([handed_over, *(offset for _, offset in answers)])
    for name in ("a", "b", "c"):
        reported = [offset for cluster, offset in answers if cluster != name]
        fields = seen_offsets.fields("session")
        others = [offset for cluster, offset in fields.get("seen", {}).items() if cluster != name]
        assert max([fields.get("after_offset", 0), *others]) == max([handed_over, *reported])


@pytest.mark.parametrize("offset", [None, True, "7", 7.0])
def test_seen_offsets_ignore_an_answer_without_a_token(offset: object) -> None:
    assert SeenOffsets(3).after("a", offset) == SeenOffsets(3)


def test_fields_are_empty_for_level_any_or_before_the_first_answer() -> None:
    assert SeenOffsets(3, {"a": 4}).fields("any") == {}
    assert NOTHING_SEEN.fields("session") == {}
    assert SeenOffsets(3, {"a": 4}).fields(None) == {"after_offset": 3, "seen": {"a": 4}}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"consistency": "strong"}, "any, bounded, session, linearizable, not 'strong'"),
        ({"acceptable_offset_lag": -1}, "acceptable_offset_lag must be a whole number"),
        ({"after_offset": 1.5}, "after_offset must be a whole number"),
    ],
)
def test_connect_refuses_wrong_freshness_options(options: dict[str, object], reason: str) -> None:
    with pytest.raises(haclient.InterfaceError, match=reason):
        haclient.connect("http://a", **options)  # type: ignore[arg-type]
