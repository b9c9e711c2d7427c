"""A job's events and what follows: the attempts that count, the state, the valid token."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from haproc.config.jobs import Schedule
from haproc.jobs.keeping import (
    FORGET_AFTER_MS,
    OTHERS_AFTER_MS,
    RingView,
    Step,
    forgettable,
    steps,
)
from haproc.jobs.model import (
    LATE_MAX_S,
    BatchState,
    Ending,
    Event,
    FileRole,
    Job,
    JobAttempt,
    JobFile,
    JobLimits,
    Kill,
    Outcome,
    Submission,
    job_of,
    leads,
    request_id,
    slot,
)
from haproc.jobs.records import (
    GRACE_MS,
    LINE_BYTES_MAX,
    RECORDS,
    Tail,
    file_key,
    left_over,
    lines_of,
    page,
    piece_bytes,
    piece_key,
    spans,
    total,
)

PROGRAM = JobFile(FileRole.PROGRAM, "p.py", 3, "00")
SUBMISSION = Submission(
    "ann",
    "r1",
    "daily",
    ("x", "ü"),
    (("spark.sql.shuffle.partitions", "2"),),
    (("haproc.consistency", "linearizable"),),
    (("CITY", "Bern"),),
    (PROGRAM,),
    JobLimits(1 << 30, 60.0, 120.0),
    restarts=1,
    fingerprint="f",
    stored="s",
    cluster="a",
    incarnation="a1",
    at_ms=1_000,
)


def attempt(name: str, replaces: str = "", cluster: str = "a", log_from: int = 0) -> JobAttempt:
    return JobAttempt(1, name, cluster, f"{cluster}1", "hash", replaces, log_from, 2_000)


def ending(of: str, outcome: Outcome) -> Ending:
    return Ending(of, outcome, None, "", 3_000)


def made(*events: Event, restarts: int = 1) -> Job:
    return job_of(7, replace(SUBMISSION, restarts=restarts), list(enumerate(events)))


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), BatchState.NOT_STARTED),
        ((attempt("x"),), BatchState.RUNNING),
        ((attempt("x"), ending("x", Outcome.SUCCESS)), BatchState.SUCCESS),
        ((attempt("x"), ending("x", Outcome.FAILED)), BatchState.STARTING),
        ((attempt("x"), ending("x", Outcome.LIMIT)), BatchState.DEAD),
        ((attempt("x"), ending("x", Outcome.ERROR)), BatchState.ERROR),
        ((attempt("x"), attempt("y", "x"), ending("y", Outcome.LOST)), BatchState.DEAD),
        ((attempt("x"), attempt("y", "x"), ending("x", Outcome.SUCCESS)), BatchState.RUNNING),
        ((attempt("x"), Kill("ann", 3)), BatchState.KILLED),
        ((Kill("ann", 3),), BatchState.KILLED),
        ((attempt("x"), ending("x", Outcome.SUCCESS), Kill("ann", 3)), BatchState.SUCCESS),
    ],
)
def test_job_state_follows_from_its_events_in_order(
    events: tuple[Event, ...], state: BatchState
) -> None:
    assert made(*events).state is state


def test_attempts_that_replace_the_same_attempt_count_once() -> None:
    job = made(attempt("x"), attempt("y", "x"), attempt("z", "x", "b"), restarts=5)
    assert [each.name for each in job.attempts] == ["x", "y"]
    assert job.valid("y") and not job.valid("x") and not job.valid("z")


def test_attempts_beyond_the_restarts_do_not_count() -> None:
    job = made(attempt("x"), attempt("y", "x"), attempt("z", "y"))
    assert job.current is not None and job.current.name == "y"


def test_attempts_of_a_job_that_has_ended_do_not_count() -> None:
    job = made(attempt("x"), Kill("ann", 3), attempt("y", "x"))
    assert len(job.attempts) == 1 and not job.valid("x")


def test_ended_attempt_is_no_longer_valid_before_the_next_one_begins() -> None:
    assert not made(attempt("x"), ending("x", Outcome.FAILED)).valid("x")


def test_events_read_in_any_order_give_the_same_job() -> None:
    events: list[Event] = [attempt("x"), attempt("z", "x", "b"), ending("x", Outcome.SUCCESS)]
    events += [attempt("y", "z"), ending("z", Outcome.LOST)]
    numbered = list(enumerate(events))
    found = set()
    for seed in range(20):
        random.Random(seed).shuffle(numbered)
        found.add(job_of(7, SUBMISSION, numbered))
    assert len(found) == 1


@pytest.mark.parametrize("record", [attempt("x", "w"), ending("x", Outcome.LIMIT), Kill("ann", 5)])
def test_events_are_read_as_they_were_written(record: Event) -> None:
    assert RECORDS.from_bytes(RECORDS.to_bytes(record)) == record


def test_submission_is_read_as_it_was_written() -> None:
    assert RECORDS.from_bytes(RECORDS.to_bytes(SUBMISSION)) == SUBMISSION


# -- what a HAProc does about it ---------------------------------------------------------------


def seen(me: str = "b", **more: object) -> RingView:
    known = RingView(me, f"{me}1", {"a": "a1"}, frozenset(), frozenset(), True, 2, 2_500)
    return replace(known, **more)  # type: ignore[arg-type]


def test_job_waits_for_the_haproc_that_received_it_and_then_for_any() -> None:
    job = made()
    late = SUBMISSION.at_ms + OTHERS_AFTER_MS
    assert steps([job], seen()) == []
    assert steps([job], seen("a", alive={})) == [(Step.START, job)]
    assert steps([job], seen(alive={})) == [(Step.START, job)]
    assert steps([job], seen(alive={"a": "a2"})) == [(Step.START, job)]
    assert steps([job], seen(now_ms=late)) == [(Step.START, job)]
    assert steps([job], seen(now_ms=late, room=0)) == []
    assert steps([job], seen(now_ms=late, serving=False)) == []


def test_attempt_of_a_haproc_that_is_gone_is_replaced_or_lost() -> None:
    last, once = made(attempt("x"), restarts=0), made(attempt("x"))
    for gone in (seen(alive={}), seen(alive={"a": "a2"})):
        assert steps([once], gone) == [(Step.START, once)]
        assert steps([last], gone) == [(Step.LOST, last)]
    for there in (seen(), seen(alive={"a": None}), seen(alive={}, unjudged=frozenset("a"))):
        assert steps([once], there) == []
    assert steps([last], seen(alive={}, serving=False)) == []


def test_own_attempt_that_does_not_run_here_is_replaced_or_lost() -> None:
    last, once = made(attempt("x"), restarts=0), made(attempt("x"))
    for job, step in ((once, Step.START), (last, Step.LOST)):
        assert steps([job], seen("a", here=frozenset({"x"}))) == []
        assert steps([job], seen("a")) == [(step, job)]


def test_started_jobs_are_no_more_than_the_free_room() -> None:
    jobs = [replace(made(), id=number) for number in (3, 1, 2)]
    found = steps(jobs, seen("a"))
    assert [job.id for _, job in found] == [1, 2]


def test_jobs_start_in_turns_of_users_by_the_number_of_their_running_jobs() -> None:
    def of(user: str, number: int, *events: Event) -> Job:
        return job_of(number, replace(SUBMISSION, user=user), list(enumerate(events)))

    running = [of("ann", 1, attempt("x")), of("ann", 2, attempt("y")), of("eve", 3, attempt("z"))]
    waiting = [of("ann", number) for number in range(4, 8)] + [of("eve", 8), of("bob", 9)]
    known = seen("a", here=frozenset("xyz"), room=5)
    assert [job.id for _, job in steps([*waiting, *running], known)] == [9, 8, 4, 5, 6]


def test_job_is_forgotten_if_it_ended_long_ago_or_there_are_too_many() -> None:
    ended = [
        job_of(number, SUBMISSION, [(1, Kill("ann", number * 1000))]) for number in range(1, 5)
    ]
    now = FORGET_AFTER_MS + 3_000
    assert [job.id for job in forgettable(ended, 10**9, 2, now)] == [1, 2]
    assert forgettable(ended, 10**9, 2, 5_000) == []
    assert [job.id for job in forgettable([*ended, made()], FORGET_AFTER_MS, 9, now)] == [1, 2, 3]


# -- the log -----------------------------------------------------------------------------------


class Stored:
    """The stored pieces of a tail, as a reader finds them."""

    def __init__(self, bytes_max: int = 1 << 20, first: int = 0) -> None:
        self.tail = Tail(first, bytes_max)
        self.kept: dict[str, bytes] = {}
        self.gone: list[str] = []

    def flush(self) -> None:
        pieces, gone = self.tail.flush()
        for piece in pieces:
            self.kept[piece_key(7, "x", piece.first, piece.end)] = piece_bytes(piece)
        self.gone += [piece_key(7, "x", first, end) for first, end in gone]

    def lines(self, attempts: tuple[JobAttempt, ...] = (attempt("x"),)) -> dict[int, str]:
        found = {}
        for span in spans(self.kept, 7, attempts):
            lines = lines_of(self.kept[span.key])
            for number in range(span.start, span.end):
                assert number not in found
                found[number] = lines[number - span.first]
        return found


@pytest.mark.parametrize("seed", range(20))
def test_log_is_the_output_in_any_pieces_and_at_any_stage_of_deletion(seed: int) -> None:
    chance = random.Random(seed)
    lines_written = [f"line {number} " + "x" * chance.randrange(3000) for number in range(200)]
    data = "\n".join(lines_written).encode() + b"\n"
    stored = Stored()
    while data:
        size = chance.randrange(1, 9000)
        stored.tail.add_output(data[:size])
        data = data[size:]
        if chance.random() < 0.5:
            stored.flush()
        if chance.random() < 0.5 and stored.gone:
            stored.kept.pop(stored.gone.pop())
    stored.tail.close()
    stored.flush()
    assert stored.lines() == dict(enumerate(lines_written))


def test_log_over_its_limit_keeps_its_end_and_the_line_numbers() -> None:
    stored = Stored(bytes_max=200_000)
    for number in range(1000):
        stored.tail.add_output(b"%06d %s\n" % (number, b"x" * 1000))
        if number % 7 == 0:
            stored.flush()
    stored.flush()
    for key in stored.gone:
        del stored.kept[key]
    lines = stored.lines()
    assert max(lines) == 999 and 150 < len(lines) < 250
    assert all(text.startswith(f"{number:06}") for number, text in lines.items())
    found = spans(stored.kept, 7, [attempt("x")])
    end = total(found, [attempt("x")])
    assert end == 1000
    assert page(None, 10, found, end) == (990, 1000)
    assert page(0, 10, found, end) == (min(lines), min(lines) + 10)
    assert page(998, 10, found, end) == (998, 1000)


def test_log_of_an_attempt_ends_where_the_next_attempt_begins() -> None:
    stored = Stored()
    stored.tail.add_output(b"0\n1\n2\n3\n")
    stored.flush()
    stored.kept[piece_key(7, "y", 2, 3)] = b'["again"]'
    attempts = (attempt("x"), attempt("y", "x", log_from=2))
    assert stored.lines(attempts) == {0: "0", 1: "1", 2: "again"}


def test_log_line_without_an_end_is_bounded_and_carriage_returns_end_lines() -> None:
    stored = Stored()
    stored.tail.add_output(b"a\rb\r\nc")
    stored.tail.add_output(b"z" * 20_000)
    stored.tail.close()
    stored.flush()
    assert [len(line) for line in stored.lines().values()] == [1, 1, 8192, 8192, 3617]


def test_log_of_empty_lines_is_bounded() -> None:
    tail = Tail(0, 1000)
    for _ in range(10):
        tail.add_output(b"\n" * 10_000)
        pieces, _ = tail.flush()
        assert sum(len(piece_bytes(piece)) for piece in pieces) <= 1000
    assert tail.end == 100_000


def test_files_and_logs_without_a_job_are_left_over() -> None:
    now_ms, old, young = 10 * GRACE_MS, f"{GRACE_MS}-a", f"{10 * GRACE_MS}-b"
    of_job = replace(SUBMISSION, stored=f"{GRACE_MS}-c")
    keys = [file_key(stored, 0) for stored in (old, young, of_job.stored)]
    keys += [piece_key(number, "x", 0, 1) for number in (7, 8)]
    assert left_over(keys, {7: of_job}, now_ms) == [keys[0], keys[-1]]


@pytest.mark.parametrize("letter", ["ü", "東", "👩"])
@pytest.mark.parametrize("shift", range(4))
def test_long_line_is_cut_between_characters(letter: str, shift: int) -> None:
    text = "x" * shift + letter * LINE_BYTES_MAX
    data = text.encode()
    for piece in (len(data) + 1, 5000):
        tail = Tail(0, 1 << 20)
        for at in range(0, len(data), piece):
            tail.add_output(data[at : at + piece])
        tail.close()
        stored, _ = tail.flush()
        lines = [line for each in stored for line in each.lines]
        assert "".join(lines) == text
        assert max(len(line.encode()) for line in lines) <= LINE_BYTES_MAX


def test_long_line_that_is_not_utf8_is_cut() -> None:
    tail = Tail(0, 1 << 20)
    tail.add_output(b"\x80" * (3 * LINE_BYTES_MAX) + b"\n")
    assert tail.end == 3


# -- schedules ---------------------------------------------------------------------------------


def test_schedule_is_due_at_moments_that_every_haproc_computes_alike() -> None:
    every = Schedule("s", "f.py", every_s=300)
    assert [slot(every, now) for now in (899.9, 900, 1199.9)] == [600, 900, 900]
    noon = 1_767_268_800  # 2026-01-01 12:00:00 UTC
    daily = Schedule("s", "f.py", cron="0 12 * * *")
    found = [slot(daily, noon + more) for more in (-1, 0, 0.5, 59, LATE_MAX_S, LATE_MAX_S + 1)]
    assert found == [None, noon, noon, noon, noon, None]
    assert request_id(daily, noon) == f"schedule:s:{noon}"


def test_schedule_is_led_by_the_lowest_name_that_is_ready() -> None:
    assert leads("a", {"b", "c"}) and leads("b", {"c"}) and leads("c", ())
    assert not leads("b", {"a", "c"})
