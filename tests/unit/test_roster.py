"""Who the ring's members are, by the records of the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from haproc.config.model import Address
from haproc.membership.peers import (
    Enrolled,
    Member,
    disagreement,
    founders,
    with_own_addresses,
)
from haproc.replicate.log_state.members import enrolled_after
from haproc.replicate.records.control import Change, Roster
from tests.unit.door_rig import make_config


def member(name: str) -> Member:
    return Member(name, Address(f"host-{name}", 8090), f"http://host-{name}:8080")


def roster(names: str, replaces: int = -1) -> Roster:
    return Roster(Change.JOIN, names[-1:], tuple(map(member, names)), replaces, "a")


def test_heard_first_record_counts() -> None:
    after = enrolled_after(Enrolled(), 7, roster("abc"))
    assert after.offset == 7 and after.names == frozenset("abc")


def test_heard_of_two_changes_of_the_same_members_only_the_first_counts() -> None:
    first = enrolled_after(Enrolled(7), 8, roster("abd", 7))
    assert enrolled_after(first, 9, roster("abce", 7)) == first
    assert enrolled_after(first, 10, roster("abde", 8)).names == frozenset("abde")


def test_heard_record_that_was_heard_before_changes_nothing() -> None:
    now = enrolled_after(enrolled_after(Enrolled(), 7, roster("ab")), 8, roster("abc", 7))
    assert enrolled_after(now, 7, roster("ab")) == now


@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=2), st.integers(-1, 20)), max_size=20)
)
def test_heard_from_any_place_on_comes_to_the_same(said: list[tuple[str, int]]) -> None:
    """A HAProc that knew the members at some place, and reads on from there, or from before."""
    log = [roster("".join(sorted(set(names))), replaces) for names, replaces in said]
    whole = [Enrolled()]
    for offset, each in enumerate(log):
        whole.append(enrolled_after(whole[-1], offset, each))
    for known, state in enumerate(whole):
        for begin in range(known + 1):
            for now in (state, Enrolled(state.offset)):  # the record itself may be gone
                for offset in range(begin, len(log)):
                    now = enrolled_after(now, offset, log[offset])
                assert now.offset == whole[-1].offset


def test_disagreement_names_who_is_missing_and_who_left() -> None:
    said = Enrolled(42, tuple(map(member, "abd")))
    assert disagreement("abd", said) == ""
    text = disagreement("abc", said)
    assert "does not name d" in text and "names c, which left" in text and "42" in text
    assert disagreement("abc", Enrolled()) == disagreement("abc", Enrolled(3)) == ""


def test_addresses_of_the_configuration_come_before_those_of_the_log(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    a, b = founders(config)
    moved = dataclasses.replace(a, peer=Address("elsewhere", 1))
    ring = with_own_addresses(map(member, "ad"), [moved, b])
    assert [(each.name, each.peer.host) for each in ring] == [("a", "elsewhere"), ("d", "host-d")]
    assert [each.name for each in founders(config)] == ["a", "b"]
