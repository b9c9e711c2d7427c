"""Tests of the ring's members, as the records of the log determine them."""

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


def test_first_roster_record_counts() -> None:
    after = enrolled_after(Enrolled(), 7, roster("abc"))
    assert after.offset == 7 and after.names == frozenset("abc")


def test_first_of_two_changes_of_the_same_roster_counts() -> None:
    first = enrolled_after(Enrolled(7), 8, roster("abd", 7))
    assert enrolled_after(first, 9, roster("abce", 7)) == first
    assert enrolled_after(first, 10, roster("abde", 8)).names == frozenset("abde")


def test_roster_record_read_again_changes_nothing() -> None:
    now = enrolled_after(enrolled_after(Enrolled(), 7, roster("ab")), 8, roster("abc", 7))
    assert enrolled_after(now, 7, roster("ab")) == now


@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=2), st.integers(-1, 20)), max_size=20)
)
def test_roster_records_read_from_any_offset_give_the_same_members(
    enrolled: list[tuple[str, int]],
) -> None:
    """A HAProc that knew the members at some offset reads on from there, or from before."""
    log = [roster("".join(sorted(set(names))), replaces) for names, replaces in enrolled]
    whole = [Enrolled()]
    for offset, each in enumerate(log):
        whole.append(enrolled_after(whole[-1], offset, each))
    for known, state in enumerate(whole):
        for begin in range(known + 1):
            for now in (state, Enrolled(state.offset)):  # the record itself may be gone
                for offset in range(begin, len(log)):
                    now = enrolled_after(now, offset, log[offset])
                assert now.offset == whole[-1].offset


def test_disagreement_names_missing_and_departed_members() -> None:
    enrolled = Enrolled(42, tuple(map(member, "abd")))
    assert disagreement("abd", enrolled) == ""
    text = disagreement("abc", enrolled)
    assert "does not name d" in text and "names c, which left" in text and "42" in text
    assert disagreement("abc", Enrolled()) == disagreement("abc", Enrolled(3)) == ""


def test_addresses_of_the_configuration_precede_those_of_the_log(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    a, b = founders(config)
    moved = dataclasses.replace(a, peer=Address("elsewhere", 1))
    ring = with_own_addresses(map(member, "ad"), [moved, b])
    assert [(each.name, each.peer.host) for each in ring] == [("a", "elsewhere"), ("d", "host-d")]
    assert [each.name for each in founders(config)] == ["a", "b"]
