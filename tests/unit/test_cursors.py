"""A stored cursor counts only if it belongs to the current log."""

from __future__ import annotations

from dmq import Cursor
from haproc.membership.state import Cause, Divergence
from haproc.replicate.log_state.members import Claims, StoredCursors
from haproc.replicate.records.progress import Progress, to_cursor


def stored(low: int, epoch: int, **fields: object) -> Cursor:
    return to_cursor(Progress(low=low, **fields), epoch)  # type: ignore[arg-type]


def test_cursor_beyond_the_end_of_the_log_counts_after_its_cluster_has_stored_another() -> None:
    cursors = StoredCursors(Claims())
    old = stored(46, 1)
    assert cursors.counting({"b": stored(7, 2), "c": old}, 7).keys() == {"b"}
    assert not cursors.counting({"c": old}, 50)
    assert not cursors.counting({"c": stored(48, 1)}, 50)
    assert cursors.counting({"c": stored(45, 1)}, 50)["c"].low == 45
    assert cursors.counting({"c": stored(46, 47)}, 50)


def test_cursor_does_not_count_if_the_log_has_other_claims_below_it() -> None:
    claims = Claims([("b", 3), ("c", 1)])
    cursors = StoredCursors(claims)
    before = stored(20, 1, claims=(("a", 0), ("b", 3), ("c", 1)))
    assert cursors.counting({"c": before}, 30)
    claims.see(25, "c")
    assert cursors.counting({"c": before}, 30), "a claim behind it says nothing"
    claims.see(9, "b")
    assert not cursors.counting({"c": before}, 30)


def test_cursor_of_a_diverged_cluster_or_an_unreadable_one_does_not_count() -> None:
    differs = stored(5, 1, diverged=Divergence(3, Cause.OUTCOME))
    assert not StoredCursors(Claims()).counting({"b": differs, "c": Cursor(5, "x", 1)}, 9)
