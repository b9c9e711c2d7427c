"""Tests of session upkeep: what the store keeps of sessions, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haproc.config.sections import Limits
from haproc.failure import ErrorClass, RequestError
from haproc.sessions.durable import GRACE_MS, Copy
from haproc.sessions.journal import ArtifactEntry, SqlEntry, shown
from haproc.sessions.upkeep import CLOSED_KEPT_MS, deletable
from tests.unit.session_rig import Ring

HOUR_S = 3600.0


async def test_idle_session_is_closed_and_its_id_becomes_free_later() -> None:
    ring = Ring()
    a = ring.member()
    session = await a.sessions.enter("u", "s", create=True)
    await a.sessions.record(session, SqlEntry("v"))
    ring.now_s += 20 * HOUR_S
    await a.sessions.enter("u", "s", create=False)
    ring.now_s += 20 * HOUR_S
    await a.upkeep.look()
    assert a.upkeep.total == 1
    ring.now_s += 6 * HOUR_S
    await a.upkeep.look()
    with pytest.raises(RequestError) as caught:
        await a.sessions.enter("u", "s", create=True)
    assert caught.value.error_class == ErrorClass.SESSION_CLOSED
    await a.upkeep.look()
    assert all("/c/" in key for key in ring.keys.kept)
    ring.now_s += CLOSED_KEPT_MS / 1000 + 1
    await a.upkeep.look()
    assert ring.keys.kept == {}
    assert not (await a.sessions.enter("u", "s", create=True)).entries


async def test_unused_session_leaves_spark_and_is_restored_when_requested() -> None:
    ring = Ring()
    a = ring.member()
    session = await a.sessions.enter("u", "s", create=True)
    await a.sessions.record(session, SqlEntry("v"))
    ring.now_s += 2 * HOUR_S
    a.engine.made[0].busy = True
    await a.sessions.sweep()
    assert not a.engine.made[0].closed
    a.engine.made[0].busy = False
    await a.sessions.sweep()
    assert a.engine.made[0].closed
    again = await a.sessions.enter("u", "s", create=False)
    assert [shown(each.entry) for each in again.entries] == ["v"]


async def test_least_recently_used_session_makes_room_on_this_haproc() -> None:
    ring = Ring(replace(Limits(), sessions_max=2))
    a, b = ring.member("a"), ring.member("b")
    for name in ("s1", "s2"):
        await a.sessions.enter("u", name, create=True)
    await b.upkeep.look()
    with pytest.raises(RequestError) as caught:
        await b.sessions.enter("u", "s3", create=True)
    assert caught.value.error_class == ErrorClass.TOO_MANY_SESSIONS
    await b.sessions.close("u", "s1")
    await b.sessions.enter("u", "s3", create=True)
    await a.sessions.enter("u", "s2", create=False)
    await a.sessions.enter("u", "s3", create=False)
    assert {session.id for session in a.sessions.all()} == {"s2", "s3"}


async def test_file_is_stored_once_and_deleted_when_no_session_needs_it() -> None:
    ring = Ring()
    a = ring.member()
    blobs = set()
    for name in ("s", "t"):
        session = await a.sessions.enter("u", name, create=True)
        blobs.add(blob := await a.sessions.put_blob(session, b"import os"))
        await a.sessions.record(session, ArtifactEntry("pyfiles/x.py", (blob,), 9))
    assert len(blobs) == 1

    def copies() -> int:
        return len([key for key in ring.keys.kept if key.startswith("blob/")])

    assert copies() == 1
    await a.sessions.close("u", "s")
    ring.now_s += 2 * HOUR_S
    for _ in range(3):
        await a.upkeep.look()
    assert copies() == 1
    await a.sessions.close("u", "t")
    for _ in range(3):
        await a.upkeep.look()
    assert copies() == 0


async def test_file_that_is_needed_again_gets_a_new_copy() -> None:
    ring = Ring()
    a = ring.member()
    session = await a.sessions.enter("u", "s", create=True)
    await a.sessions.put_blob(session, b"x")
    ring.now_s += GRACE_MS / 1000
    await a.sessions.put_blob(session, b"x")
    assert len([key for key in ring.keys.kept if key.startswith("blob/")]) == 2
    ring.now_s += 1
    await a.upkeep.look()
    assert len([key for key in ring.keys.kept if key.startswith("blob/")]) == 1


def test_copies_younger_than_the_grace_period_are_not_deletable() -> None:
    copies = [Copy("1", "a", 0), Copy("2", "a", 5), Copy("3", "b", 0), Copy("4", "b", 10)]
    assert deletable(copies, frozenset("a"), GRACE_MS) == []
    assert deletable(copies, frozenset("a"), GRACE_MS + 6) == ["1", "3"]
    assert deletable(copies, frozenset("a"), GRACE_MS + 11) == ["1", "3", "4"]
