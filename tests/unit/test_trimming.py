"""Tests of trimming: how much of the log may be deleted, and which member holds it back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, RecordJudgement
from haproc.replicate.log_state.members import names_needed
from haproc.replicate.trim import ARCHIVE, Plan, needs, plan, trims

WINDOW = 10


def planned(cursors: dict[str, int], names: str = "abc", keep_from: int = 10**6) -> Plan:
    end = max([100, *cursors.values()])
    return plan(0, end, needs(names, cursors, WINDOW), WINDOW, keep_from)


def test_plan_with_all_members_at_the_end_keeps_the_window() -> None:
    assert planned({"a": 100, "b": 100, "c": 100}) == Plan(0, 100, 90)


def test_plan_is_held_back_by_the_slowest_member_and_names_it() -> None:
    assert planned({"a": 100, "b": 80, "c": 40}) == Plan(0, 100, 30, "c", 40)


def test_plan_with_two_equally_slow_members_gains_nothing_without_one_of_them() -> None:
    assert planned({"a": 100, "b": 40, "c": 40}) == Plan(0, 100, 30, "b", 0)


def test_plan_is_held_back_completely_by_a_member_without_a_stored_cursor() -> None:
    assert planned({"a": 100, "b": 100}) == Plan(0, 100, 0, "c", 90)


def test_plan_ignores_the_cursor_of_a_non_member() -> None:
    assert planned({"a": 100, "b": 100, "c": 7}, names="ab").point == 90


def test_plan_keeps_the_records_that_an_operator_wants_and_names_no_member() -> None:
    assert planned({"a": 100, "b": 80, "c": 70}, keep_from=50) == Plan(0, 100, 50)


def test_plan_is_never_below_the_start_of_the_log() -> None:
    assert plan(60, 100, needs("ab", {"a": 100, "b": 40}, WINDOW), WINDOW, 95).point == 60


def test_names_needed_without_a_roster_are_all_that_ever_took_part() -> None:
    assert names_needed(None, "ab", {"a", "c"}, {"d"}) == frozenset("abcd")
    assert names_needed(frozenset("ab"), "abc", {"a", "c"}, {"d"}) == frozenset("ab")


def test_trims_is_true_only_of_the_lowest_ready_name() -> None:
    assert trims("a", {"b", "c"}) and trims("b", {"c"}) and trims("c", ())
    assert not trims("b", {"a", "c"})


names = st.sampled_from("abcd")
offsets = st.integers(0, 200)


@given(st.dictionaries(names, offsets), st.sets(names, min_size=1), st.integers(0, 250))
def test_plan_keeps_everything_that_a_member_reads_at_a_restart(
    cursors: dict[str, int], members: set[str], keep_from: int
) -> None:
    found = plan(0, 200, needs(members, cursors, WINDOW), WINDOW, keep_from)
    for member in members:
        assert found.point <= IdempotencyWindow(WINDOW).begins(cursors.get(member, 0))
    assert found.point <= keep_from
    assert found.held_records >= 0
    assert (found.held_by == "") <= (found.held_records == 0)
    assert found.held_by in {"", *members}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=10),
)
def test_plan_stays_right_for_two_trimmers_at_any_times(
    commits: list[tuple[str, int]], trimmers: list[tuple[int, int]]
) -> None:
    """Cursors only rise; a plan is made at one moment and carried out at a later one."""
    stored: list[dict[str, int]] = [{}]
    for name, more in commits:
        before = stored[-1]
        stored.append({**before, name: before.get(name, 0) + more})
    for planned_at, after in trimmers:
        then = stored[min(planned_at, len(stored) - 1)]
        now = stored[min(planned_at + after, len(stored) - 1)]
        point = plan(0, 2000, needs("abc", then, WINDOW), WINDOW, 2000).point
        assert all(point <= IdempotencyWindow(WINDOW).begins(now.get(name, 0)) for name in "abc")


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 15)), min_size=1, max_size=60),
    st.data(),
)
def test_window_rebuilt_from_a_trimmed_log_gives_the_same_results(
    sent: list[tuple[str, int]], data: st.DataObject
) -> None:
    """For any cursor, the rest after a trim is enough to judge all later records."""
    log = [(offset, ("u", op), max(0, offset - age)) for offset, (op, age) in enumerate(sent)]
    whole = IdempotencyWindow(WINDOW)
    sightings = [whole.see(*record, WINDOW) for record in log]
    low = data.draw(st.integers(0, len(log)))
    start = plan(0, len(log), needs("a", {"a": low}, WINDOW), WINDOW, 10**6).point
    again = IdempotencyWindow(WINDOW)
    found: list[RecordJudgement] = []
    for record in log[start:]:
        if record[0] == low:
            again.knows_from(start)
        found.append(again.see(*record, WINDOW))
    assert found[low - start :] == sightings[low:]


def test_plan_is_held_back_by_the_archive_and_names_it() -> None:
    names, cursors = ["a", "b", "c", ARCHIVE], {"a": 100, "b": 100, "c": 90}
    needed = needs(names, {**cursors, ARCHIVE: 40}, WINDOW)
    assert plan(0, 100, needed, WINDOW, 10**6) == Plan(0, 100, 30, ARCHIVE, 50)
    archived = needs(names, {**cursors, ARCHIVE: 100}, WINDOW)
    assert plan(0, 100, archived, WINDOW, 10**6) == Plan(0, 100, 80, "c", 10)
