"""The commits of a table that the ring did not make."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.engine.commits import Commit, Newest
from haproc.engine.confs import user_metadata
from haproc.engine.copies import OPERATION as COPY
from haproc.engine.interface import TransactionMarker
from haproc.replicate.agree.findings import COMMITS_MAX, Foreign, Looked
from haproc.replicate.agree.foreign_watch import settled_by

RING = "ring.abc"
TABLE = "`spark_catalog`.`s`.`t`"


def commit(version: int, at_ms: int = 0, *, ours: bool = False, operation: str = "WRITE") -> Commit:
    note = user_metadata(TransactionMarker(RING, version)) if ours else ""
    return Commit(version, at_ms or 100 + version, operation, note=note)


def looked(until_ms: int | None, seen: int | None = None) -> Looked:
    return Looked(until_ms, {} if seen is None else {TABLE: seen})


def foreign(before: Looked, history: Sequence[Commit], newest: int | None = None) -> list[int]:
    """Return the versions that are found in a history, the oldest commit first."""
    last = history[-1 if newest is None else newest]
    at = Newest(last.version, last.at_ms)
    if not before.is_due(TABLE, at):
        return []
    return [each.version for each in before.foreign(TABLE, at, history[::-1], RING)]


def test_first_look_finds_nothing_and_later_commits_are_foreign() -> None:
    history = [commit(0), commit(1)]
    assert foreign(looked(None), history) == []
    after = looked(None).after({TABLE: Newest(1, 101)})
    assert after == Looked(101, {TABLE: 1})
    assert foreign(after, history) == []
    assert foreign(after, [*history, commit(2)]) == [2]


def test_commits_with_the_note_of_the_ring_are_not_foreign() -> None:
    history = [commit(0, ours=True), commit(1, ours=True, operation="OPTIMIZE"), commit(2)]
    assert foreign(looked(99), history) == [2]
    assert foreign(looked(99), history[:2]) == []


@pytest.mark.parametrize(
    "note", ["", "haproc:other.log:7", "haproc:ring.abcd:7", "haproc:ring.abc:x", "somebody's"]
)
def test_commits_with_other_notes_are_foreign(note: str) -> None:
    assert foreign(looked(99), [Commit(0, 100, "WRITE", note=note)]) == [0]


def test_new_commits_of_a_known_table_are_found_by_version_and_not_by_time() -> None:
    assert foreign(looked(500, seen=1), [commit(0), commit(1), commit(2)]) == [2]


def test_new_commits_after_a_restart_are_found_by_their_time() -> None:
    assert foreign(looked(101), [commit(0), commit(1), commit(2)]) == [2]
    assert foreign(looked(102), [commit(0), commit(1), commit(2)]) == []


def test_recreated_table_is_read_from_its_first_version() -> None:
    recreated = [commit(0, 300, operation="CREATE TABLE AS SELECT"), commit(1, 301, ours=True)]
    for seen in (0, 1, 5):
        assert foreign(looked(200, seen=seen), recreated) == [0]


def test_table_with_only_old_commits_has_no_foreign_ones() -> None:
    assert foreign(looked(500), [commit(0), commit(1)]) == []


def test_empty_table_before_a_copy_is_not_foreign() -> None:
    begun = commit(0, operation="CREATE TABLE")
    assert foreign(looked(50), [begun, commit(1, ours=True, operation=COPY)]) == []
    assert foreign(looked(50), [begun, commit(1, ours=True)]) == [0]


def test_commits_newer_than_the_reported_one_wait_for_the_next_look() -> None:
    history = [commit(0), commit(1), commit(2)]
    assert foreign(looked(50), history, newest=1) == [0, 1]
    after = looked(50).after({TABLE: Newest(1, 101)})
    assert foreign(after, history) == [2]


def test_table_that_could_not_be_read_is_read_again() -> None:
    after = looked(200, seen=1).after({TABLE: Newest(3, 300)}, [TABLE])
    assert foreign(after, [commit(2, 250), commit(3, 300)]) == [2, 3]


def test_older_snapshot_does_not_change_the_last_look() -> None:
    after = looked(102, seen=2).after({TABLE: Newest(1, 101)})
    assert after == looked(102, seen=2)


@given(
    st.lists(st.booleans(), min_size=1, max_size=200),
    st.integers(-1, 200),
    st.booleans(),
)
def test_reading_in_steps_finds_all_foreign_commits_of_the_history(
    ours: list[bool], seen: int, restarted: bool
) -> None:
    history = [commit(version, ours=mine) for version, mine in enumerate(ours)]
    seen = min(seen, len(history) - 1)
    before = Looked(100 + seen, {} if restarted else {TABLE: seen})
    newest = Newest(history[-1].version, history[-1].at_ms)
    if not before.is_due(TABLE, newest):
        assert seen == len(history) - 1
        return
    count, reads = before.first_count(TABLE, newest), 0
    read = history[::-1][:count]
    while count := before.more_count(read, count):
        read, reads = history[::-1][:count], reads + 1
    assert reads <= 5
    found = before.foreign(TABLE, newest, read, RING)
    assert found == [each for each in history[seen + 1 :] if not ours[each.version]]
    assert not before.after({TABLE: newest}).is_due(TABLE, newest)


def test_number_of_commits_read_is_bounded() -> None:
    newest = Newest(10**6, 10**6)
    assert looked(0, seen=0).first_count(TABLE, newest) == COMMITS_MAX
    assert looked(0).more_count([commit(1, 10**6)] * COMMITS_MAX, COMMITS_MAX) == 0


@pytest.mark.parametrize(
    ("operation", "changes"),
    [
        ("OPTIMIZE", False),
        ("VACUUM START", False),
        ("VACUUM END", False),
        ("REORG", False),
        ("STREAMING UPDATE", True),
        ("RESTORE", True),
        ("CHANGE COLUMN", True),
        ("what nobody knows", True),
    ],
)
def test_only_known_maintenance_operations_change_no_rows(operation: str, changes: bool) -> None:
    assert Foreign("s.t", commit(1, operation=operation), 7).changes_rows is changes


def test_verification_settles_commits_found_before_it() -> None:
    found = Foreign("s.t", commit(1), 7)
    assert found.verified(6) is found
    settled = found.verified(7)
    assert settled.verified_at == 7
    assert settled.verified(9) is settled
    assert str(found) == "s.t version 1, WRITE by an unknown user, 1970-01-01T00:00:00.101Z"


def test_verification_lists_commits_settled_by_it_or_by_none() -> None:
    found = Foreign("s.t", commit(1), 5)
    commits = [found.json(), found.verified(6).json(), found.verified(7).json()]
    assert settled_by({"commits": commits}, 7) == [commits[0], commits[2]]
