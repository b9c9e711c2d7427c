"""How much of the log may go, and who holds it back."""

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


def test_plan_everybody_at_the_end_leaves_the_window() -> None:
    assert planned({"a": 100, "b": 100, "c": 100}) == Plan(0, 100, 90)


def test_plan_slowest_member_holds_back_and_is_named() -> None:
    assert planned({"a": 100, "b": 80, "c": 40}) == Plan(0, 100, 30, "c", 40)


def test_plan_two_that_are_equally_far_behind_would_both_have_to_go() -> None:
    assert planned({"a": 100, "b": 40, "c": 40}) == Plan(0, 100, 30, "b", 0)


def test_plan_member_that_never_stored_a_cursor_holds_back_everything() -> None:
    assert planned({"a": 100, "b": 100}) == Plan(0, 100, 0, "c", 90)


def test_plan_cursor_of_one_that_is_no_member_counts_for_nothing() -> None:
    assert planned({"a": 100, "b": 100, "c": 7}, names="ab").point == 90


def test_plan_operator_keeps_more_than_is_needed_and_nobody_is_named_for_it() -> None:
    assert planned({"a": 100, "b": 80, "c": 70}, keep_from=50) == Plan(0, 100, 50)


def test_plan_is_never_below_the_start() -> None:
    assert plan(60, 100, needs("ab", {"a": 100, "b": 40}, WINDOW), WINDOW, 95).point == 60


def test_names_needed_without_a_word_of_the_log_are_all_who_ever_took_part() -> None:
    assert names_needed(None, "ab", {"a", "c"}, {"d"}) == frozenset("abcd")
    assert names_needed(frozenset("ab"), "abc", {"a", "c"}, {"d"}) == frozenset("ab")


def test_trims_lowest_name_of_those_that_are_ready() -> None:
    assert trims("a", {"b", "c"}) and trims("b", {"c"}) and trims("c", ())
    assert not trims("b", {"a", "c"})


names = st.sampled_from("abcd")
offsets = st.integers(0, 200)


@given(st.dictionaries(names, offsets), st.sets(names, min_size=1), st.integers(0, 250))
def test_plan_nobody_misses_what_a_restart_reads(
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
def test_plan_of_any_two_trimmers_at_any_time_stays_right(
    commits: list[tuple[str, int]], trimmers: list[tuple[int, int]]
) -> None:
    """Cursors only rise; a plan made at one moment is carried out at a later one."""
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
def test_window_rebuilt_from_a_trimmed_log_judges_as_the_whole_one(
    sent: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Whatever the cursor, what is left after a trim is enough to judge all that follows."""
    log = [(offset, ("u", op), max(0, offset - age)) for offset, (op, age) in enumerate(sent)]
    whole = IdempotencyWindow(WINDOW)
    told = [whole.see(*record, WINDOW) for record in log]
    low = data.draw(st.integers(0, len(log)))
    start = plan(0, len(log), needs("a", {"a": low}, WINDOW), WINDOW, 10**6).point
    again = IdempotencyWindow(WINDOW)
    found: list[RecordJudgement] = []
    for record in log[start:]:
        if record[0] == low:
            again.knows_from(start)
        found.append(again.see(*record, WINDOW))
    assert found[low - start :] == told[low:]


def test_plan_waits_for_the_archive_and_names_it() -> None:
    names, cursors = ["a", "b", "c", ARCHIVE], {"a": 100, "b": 100, "c": 90}
    needed = needs(names, {**cursors, ARCHIVE: 40}, WINDOW)
    assert plan(0, 100, needed, WINDOW, 10**6) == Plan(0, 100, 30, ARCHIVE, 50)
    archived = needs(names, {**cursors, ARCHIVE: 100}, WINDOW)
    assert plan(0, 100, archived, WINDOW, 10**6) == Plan(0, 100, 80, "c", 10)
