"""Tests of writes that are appended again after their session was lost (`haproc.route.model`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from haproc.failure import ErrorClass, RequestError, refused
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.writes import WriteAttempt
from haproc.route import attempts
from haproc.route.attempts import Attempts, Make
from haproc.route.model import IDS_MAX, Request, SentSql
from tests.simulation.computed import of_session
from tests.simulation.directed import Stage, as_story
from tests.simulation.test_computed import rows_records, seen
from tests.simulation.test_staging_tables import IDS, check_rows_settled, ids
from tests.simulation.violations import found_by

REQUEST = Request("g", SentSql("the same each time"), "g")


def made(stage: Stage, name: str, *lends: bool) -> Make:
    """Return a function that makes the write; each time the client's session is there, or gone."""
    left, route = list(lends), Attempts(stage.replica(name))

    async def make() -> Operation:
        op, since = of_session("g", name), stage.replica(name).writes.since()
        op = replace(op, id=route.next_id(REQUEST), since=since)
        if left.pop(0) if left else True:
            stage.replica(name).computing.attach_session(op.key, stage.reading(name))
        return op

    return make


async def write(stage: Stage, name: str, *lends: bool) -> WriteAttempt:
    return await Attempts(stage.replica(name)).write(REQUEST, made(stage, name, *lends))


@as_story()
async def test_write_whose_session_was_gone_is_appended_again_and_applied_once(
    stage: Stage,
) -> None:
    await ids(stage)
    attempt = await write(stage, "a", False, False, True)
    assert (attempt.facts.id, attempt.outcome.status) == ("g~3", OutcomeStatus.APPLIED)
    assert [rows.failure is None for rows in rows_records(stage)] == [False, False, True]
    known = await Attempts(stage.replica("b")).known(REQUEST)
    assert known is not None and known.facts.id == "g~3"
    await marked_once(stage)


@as_story()
async def test_write_that_several_haprocs_append_again_at_once_is_applied_once(
    stage: Stage,
) -> None:
    await ids(stage)

    async def gone() -> Operation:
        op = await made(stage, "a", False)()
        if op.id != "g":
            raise refused(  # its client does not bring the session back here
                ErrorClass.SESSION_UNKNOWN,
                "no session",
                "",
            )
        return op

    with pytest.raises(RequestError):
        await Attempts(stage.replica("a")).write(REQUEST, gone)
    found = await asyncio.gather(*(write(stage, name) for name in "abcabc"))
    assert {each.facts.id for each in found} == {"g~2"}
    assert {each.outcome.status for each in found} == {OutcomeStatus.APPLIED}
    await marked_once(stage)


@as_story()
async def test_write_whose_session_is_always_gone_is_rejected_after_the_last_id(
    stage: Stage,
) -> None:
    await ids(stage)
    attempt = await write(stage, "a", *[False] * 20)
    assert attempt.outcome.status is OutcomeStatus.REJECTED
    assert attempt.facts.id == f"g~{IDS_MAX}"
    again = await Attempts(stage.replica("b")).known(REQUEST)
    assert again is not None and again.facts.id == f"g~{IDS_MAX}"
    assert seen(stage, "b", "g") == []


async def marked_once(stage: Stage) -> None:
    await check_rows_settled(stage)
    assert len(seen(stage, "c", "g")) == len(IDS)


def any_rejection_made_again(patch: pytest.MonkeyPatch) -> None:
    """Append a write again after any outcome, applied or not."""
    patch.setattr(attempts, "_again", lambda outcome: outcome is not None)


def test_rule_of_appending_again_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    any_rejection_made_again(monkeypatch)
    story_of_two: Callable[[], None] = (
        test_write_that_several_haprocs_append_again_at_once_is_applied_once
    )
    found_by(story_of_two, "assert {each.facts.id")
