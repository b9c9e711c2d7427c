"""Tests of sessions that move between HAProcs: their content, and who may change it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dmq import LogUnavailableError
from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, RequestError
from haproc.route.plans import session_ref
from haproc.sessions.client import ClientSession
from haproc.sessions.durable import Adoption, Key, Numbered, SessionStore
from haproc.sessions.effects import effect_of_sql
from haproc.sessions.journal import ArtifactEntry, ConfEntry, Kept, SettingsEntry, SqlEntry
from haproc.sessions.upkeep import rebuilding
from tests.unit.session_rig import DEFAULTS, FakeSpark, Member, Ring

SALES = replace(DEFAULTS, schema="sales")


async def entered(member: Member, session_id: str = "s", *, create: bool = False) -> ClientSession:
    session = await member.sessions.enter("u", session_id, create=create)
    await session.spark.ready()
    return session


async def begun() -> tuple[Ring, Member, Member, ClientSession]:
    """Return a ring, two of its members, and a session that the first one has begun."""
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    return ring, a, b, await entered(a, create=True)


def spark(session: ClientSession) -> FakeSpark:
    assert isinstance(session.spark, FakeSpark)
    return session.spark


async def refused(call: object) -> str:
    with pytest.raises(RequestError) as caught:
        await call  # type: ignore[misc]
    return caught.value.error_class


async def test_session_continues_on_another_haproc_with_its_entries_in_order() -> None:
    _, a, b, session = await begun()
    await a.sessions.record(session, SqlEntry("v1"))
    await a.sessions.record(session, SettingsEntry(SALES))
    await a.sessions.record(session, SqlEntry("v2"))
    await a.sessions.record(session, ConfEntry((("spark.x", "1"), ("haproc.consistency", "any"))))
    there = await entered(b)
    assert spark(there).ran == ["default: v1", "sales: v2"]
    assert there.settings == spark(there).given == replace(SALES, confs=(("spark.x", "1"),))
    assert there.options == (("haproc.consistency", "any"),)
    assert there.holds_temporaries
    assert there.server_id == session.server_id
    assert (a.caught_up, b.caught_up) == (0, 1)


async def test_rebuilt_session_waits_for_the_log_only_if_it_holds_sql_entries() -> None:
    """Otherwise the first query of a program that sets something would wait for slow tables."""
    a = Ring().member("a")
    session = await entered(a, create=True)
    await a.sessions.record(session, ConfEntry((("k", "1"),)))
    spark(session).lose()
    await session.spark.ready()
    assert a.caught_up == 0
    await a.sessions.record(session, SqlEntry("v1"))
    spark(session).lose()
    await session.spark.ready()
    assert a.caught_up == 1


async def test_consecutive_settings_become_one_entry() -> None:
    ring, a, b, session = await begun()
    for value in "123":
        await a.sessions.record(session, ConfEntry((("k", value), (f"k{value}", "x"))))
    await a.sessions.record(session, ConfEntry((), ("k1",)))
    assert len(session.entries) == 1
    assert len([key for key in ring.keys.kept if "/e/" in key]) == 1
    there = await entered(b)
    assert there.settings.confs == (("k", "3"), ("k2", "x"), ("k3", "x"))
    assert there.settings == session.settings


async def test_session_is_adopted_once_by_concurrent_requests() -> None:
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    await entered(a, create=True)
    sessions = await asyncio.gather(*(entered(b) for _ in range(10)))
    assert len({id(each) for each in sessions}) == len(b.engine.made) == 1
    assert b.sessions.adopted == 1


async def test_session_adopted_by_two_haprocs_at_once_ends_with_one_owner() -> None:
    ring = Ring()
    a, b, c = (ring.member(name) for name in "abc")
    session = await entered(a, create=True)
    await a.sessions.record(session, SqlEntry("v"))
    found = await asyncio.gather(entered(b), entered(c))
    outcomes = await asyncio.gather(
        b.sessions.record(found[0], SqlEntry("from b")),
        c.sessions.record(found[1], SqlEntry("from c")),
        return_exceptions=True,
    )
    acknowledged = [
        who for who, error in zip(("from b", "from c"), outcomes, strict=True) if error is None
    ]
    last = await entered(ring.member("d"))
    ran = [each.removeprefix("default: ") for each in spark(last).ran]
    assert ran == ["v", *acknowledged]


async def test_replaced_owner_cannot_record_and_adopts_again() -> None:
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    old = await entered(a, create=True)
    there = await entered(b)
    await b.sessions.record(there, SqlEntry("from b"))
    lost = await refused(a.sessions.record(old, SqlEntry("from a")))
    assert lost == ErrorClass.SESSION_MOVED
    again = await entered(a)
    assert again is not old
    assert spark(again).ran == ["default: from b"]


async def test_replaced_owner_notices_before_it_answers_a_query() -> None:
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    old = await entered(a, create=True)
    there = await entered(b)
    await b.sessions.record(there, SqlEntry("v"))
    assert await entered(a) is not old


async def test_session_is_rebuilt_when_spark_lost_it_and_its_handles_are_lost() -> None:
    a = Ring().member()
    session = await entered(a, create=True)
    await a.sessions.record(session, SqlEntry("v"))
    session.handles.add("checkpoint")
    session.check_handles(frozenset({"checkpoint"}))
    spark(session).lose()
    await session.spark.ready()
    assert spark(session).ran == ["default: v"]
    with pytest.raises(RequestError) as caught:
        session.check_handles(frozenset({"checkpoint"}))
    assert caught.value.error_class == ErrorClass.HANDLE_LOST


async def test_journal_entry_that_cannot_be_run_again_is_named_in_the_error() -> None:
    _, a, b, session = await begun()
    await a.sessions.record(session, SqlEntry("CREATE TEMP VIEW v"))
    b.engine.fails.add("CREATE TEMP VIEW v")
    with pytest.raises(RequestError, match=r"step 1 of 1 .*CREATE TEMP VIEW v") as caught:
        await entered(b)
    assert caught.value.error_class == ErrorClass.SESSION_NOT_REBUILT
    b.engine.fails.clear()
    assert spark(await entered(b)).ran == ["default: CREATE TEMP VIEW v"]


async def test_unknown_or_closed_session_is_not_created_again() -> None:
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    assert await refused(a.sessions.enter("u", "s", create=False)) == ErrorClass.SESSION_UNKNOWN
    session = await entered(a, create=True)
    assert await b.sessions.close("u", "s")
    assert not await b.sessions.close("u", "s")
    for member in (a, b):
        closed = await refused(member.sessions.enter("u", "s", create=True))
        assert closed == ErrorClass.SESSION_CLOSED
    assert await refused(a.sessions.record(session, SqlEntry("v")))
    assert await refused(a.sessions.enter("other", "s", create=False))


async def test_step_that_ends_with_an_error_is_undone() -> None:
    a = Ring().member()
    session = await entered(a, create=True)
    with pytest.raises(TimeoutError):
        async with a.sessions.changing(session):
            spark(session).ran.append("a view that nobody recorded")
            raise TimeoutError
    await session.spark.ready()
    assert spark(session).ran == []


async def test_step_whose_effect_cannot_be_read_is_undone() -> None:
    """Spark has run it without a journal entry: the next statement finds the session without it."""
    a = Ring().member()
    session = await entered(a, create=True)

    async def run() -> None:
        spark(session).ran.append("a view that nobody recorded")

    async def look() -> None:
        raise EngineError(ErrorKind.APPLICATION, "unresolved")

    with pytest.raises(EngineError):
        async with a.sessions.changing(session):
            await session.leaving(run, look)
    await session.spark.ready()
    assert spark(session).ran == []


async def test_clone_has_the_same_content_and_changes_independently() -> None:
    _, a, b, session = await begun()
    blob = await a.sessions.put_blob(session, b"import os")
    await a.sessions.record(session, ArtifactEntry("pyfiles/x.py", (blob,), 9))
    copy = await a.sessions.clone(session, "t")
    await a.sessions.record(copy, SqlEntry("v"))
    assert await refused(a.sessions.clone(session, "t")) == ErrorClass.SESSION_EXISTS
    first, second = await entered(b, "s"), await entered(b, "t")
    assert spark(first).ran == []
    assert spark(second).ran == ["default: v"]
    for each in (first, second):
        assert [(f.name, f.pieces) for f in spark(each).files] == [
            ("pyfiles/x.py", (b"import os",))
        ]


async def test_session_begun_afresh_has_nothing_of_its_earlier_content() -> None:
    ring, a, b, session = await begun()
    await a.sessions.record(session, SqlEntry("old"))
    anew = await b.sessions.begin_afresh("u", "s")
    await b.sessions.record(anew, SqlEntry("new"))
    assert spark(await entered(ring.member("c"))).ran == ["default: new"]


async def test_session_is_rebuilt_as_of_an_ordinal() -> None:
    _, a, b, session = await begun()
    await a.sessions.record(session, SqlEntry("v1"))
    entries = session.next_ordinal
    await a.sessions.record(session, SqlEntry("v2"))
    made = await b.sessions.rebuild("u", "s", entries, session.begun)
    await made.ready()
    assert isinstance(made, FakeSpark)
    assert made.ran == ["default: v1"]
    assert await entered(a) is session  # nobody has taken it over


@pytest.mark.parametrize("how", ["begun afresh", "closed and begun again"])
async def test_earlier_session_is_not_rebuilt_from_the_new_content_of_its_id(how: str) -> None:
    """Ordinals restart: the entries at them belong to another session."""
    ring = Ring()
    a, b, c = (ring.member(name) for name in "abc")
    session = await entered(a, create=True)
    await a.sessions.record(session, SqlEntry("old"))
    ref = session_ref(session)
    assert ref is not None
    there = await entered(b)  # whoever adopts it goes on with it
    made = await rebuilding(c.sessions)(ref)
    assert isinstance(made, FakeSpark) and made.ran == ["default: old"]
    if how == "begun afresh":
        there = await b.sessions.begin_afresh("u", "s")
    else:
        await b.sessions.close("u", "s")
        for key in [key for key in ring.keys.kept if key.startswith(Key("u", "s").prefix)]:
            await b.store.delete(key)  # as upkeep does after an hour
        there = await entered(b, create=True)
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            await rebuilding(c.sessions)(ref)
        assert caught.value.error_class == ErrorClass.SESSION_GONE
        await b.sessions.record(there, SqlEntry("new"))


async def test_session_limits_are_enforced() -> None:
    a = Ring(replace(Ring().limits, session_entries_max=2, session_files_bytes_max=5)).member()
    session = await entered(a, create=True)
    entry = ArtifactEntry("files/x", ("0",), 6)
    assert await refused(a.sessions.record(session, entry)) == ErrorClass.SESSION_TOO_LARGE
    for view in ("v1", "v2"):
        await a.sessions.record(session, SqlEntry(view))
    assert await refused(a.sessions.record(session, SqlEntry("v3"))) == ErrorClass.SESSION_TOO_LARGE
    assert await entered(a) is session


async def test_session_counts_as_changed_from_the_start_of_a_changing_statement() -> None:
    member = Ring().member()
    session = await entered(member, create=True)
    before = session.unchanged()
    async with member.sessions.changing(session):
        assert not before(), "Spark may have run what is not recorded yet"
        during = session.unchanged()
        await member.sessions.record(session, SqlEntry("v1"))
    assert session.unchanged()()
    assert not before() and not during()


async def test_session_whose_changing_statement_is_refused_counts_as_changed() -> None:
    """Spark has run the statement, although the journal does not have it."""
    member = Ring(replace(Ring().limits, session_entries_max=0)).member()
    session = await entered(member, create=True)
    unchanged = session.unchanged()
    with pytest.raises(RequestError):
        async with member.sessions.changing(session):
            await member.sessions.record(session, SqlEntry("v"))
    assert session.next_ordinal == 0 and not unchanged()


async def test_session_adopted_right_after_a_statement_counts_as_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The statement counts, but this HAProc's copy of the session records nothing any more."""
    _, a, b, session = await begun()
    unchanged, append = session.unchanged(), SessionStore.append

    async def then_b_adopts(
        self: SessionStore,
        key: Key,
        owner: Adoption,
        ordinal: int,
        entry: Kept,
        ids: tuple[str, ...],
        replaces: int | None,
    ) -> Numbered:
        found = await append(self, key, owner, ordinal, entry, ids, replaces)
        await entered(b)
        return found

    monkeypatch.setattr(SessionStore, "append", then_b_adopts)
    async with a.sessions.changing(session):
        await a.sessions.record(session, SqlEntry("v"))
    assert session.next_ordinal == 0 and session.spark.stands
    assert not unchanged()


@pytest.mark.parametrize("clones", [True, False])
async def test_session_that_cannot_begin_holds_no_place(
    clones: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Ring().member()
    session = await entered(member, create=True)

    async def away(*_: Any, **__: Any) -> Any:
        raise TimeoutError("the store is away")

    monkeypatch.setattr(SessionStore, "adopt", away)
    for number in range(3):
        with pytest.raises(TimeoutError):
            if clones:
                await member.sessions.clone(session, f"c{number}")
            else:
                await member.sessions.enter("ann", f"c{number}", create=True)
    assert member.sessions.room.taken == 1
    monkeypatch.undo()
    closing = [member.sessions.close(session.user, session.id) for _ in range(3)]
    assert sorted(await asyncio.gather(*closing)) == [False, False, True]
    assert member.sessions.room.taken == 0


async def test_session_whose_client_leaves_while_it_begins_holds_its_place_until_the_next_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may exist: otherwise clients that come and go could have any number of sessions."""
    member = Ring().member()
    adopt = SessionStore.adopt

    async def slowly(*values: Any, **options: Any) -> Any:
        await adopt(*values, **options)
        await asyncio.sleep(10)

    monkeypatch.setattr(SessionStore, "adopt", slowly)
    task = asyncio.create_task(member.sessions.enter("ada", "s1", create=True))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert member.sessions.room.taken == 1


def made(name: str, number: int) -> SqlEntry:
    text = f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {number}"
    return SqlEntry(text, effect_of_sql(text))


async def test_entry_replaces_those_of_its_name_and_keeps_their_request_ids() -> None:
    ring, a, b, session = await begun()
    for number in range(3):
        await a.sessions.record(session, made("v", number), f"id{number}")
        await a.sessions.record(session, SettingsEntry(SALES))
    await a.sessions.record(session, made("w", 3), "other")
    assert len([key for key in ring.keys.kept if "/e/" in key]) == 3
    there = await entered(b)
    assert all(there.has_recorded(f"id{number}") for number in range(3)), "a late copy runs again"
    await there.spark.ready()
    assert isinstance(there.spark, FakeSpark)
    assert there.spark.ran == [
        "sales: CREATE OR REPLACE TEMP VIEW v AS SELECT 2",
        "sales: CREATE OR REPLACE TEMP VIEW w AS SELECT 3",
    ]


async def test_entry_that_could_not_be_deleted_is_deleted_with_the_next_one() -> None:
    ring = Ring()
    a = ring.member("a")
    session = await entered(a, create=True)
    await a.sessions.record(session, made("v", 0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(a.store, "delete", away)
        await a.sessions.record(session, made("v", 1))
    assert len(session.entries) == 1 and len([k for k in ring.keys.kept if "/e/" in k]) == 2
    await a.sessions.record(session, made("w", 2))
    assert len([key for key in ring.keys.kept if "/e/" in key]) == 2


async def away(*_: Any) -> None:
    raise LogUnavailableError("the store is away")


async def test_session_whose_view_was_replaced_since_is_not_rebuilt_as_of_an_ordinal() -> None:
    """A write that rests on it would get the rows of the newer view."""
    _, a, b, session = await begun()
    await a.sessions.record(session, made("v", 0))
    entries = session.next_ordinal
    await a.sessions.record(session, made("w", 1))
    await (await b.sessions.rebuild("u", "s", entries, session.begun)).ready()
    await a.sessions.record(session, made("v", 2))
    with pytest.raises(RequestError) as caught:
        await b.sessions.rebuild("u", "s", entries, session.begun)
    assert caught.value.error_class == ErrorClass.SESSION_UNKNOWN


async def test_view_that_spark_refuses_breaks_only_its_own_name() -> None:
    _, a, b, session = await begun()
    lost = made("v", 0)
    await a.sessions.record(session, lost)
    await a.sessions.record(session, made("w", 1))
    b.engine.fails.add(lost.text)
    there = await entered(b)
    await there.spark.ready()
    assert isinstance(there.spark, FakeSpark)
    broken, fine = there.spark.ran
    assert "frame v: " in broken and "no such table" in broken
    assert "raise_error" in broken and fine.endswith("w AS SELECT 1")


@pytest.mark.parametrize(
    ("text", "returns"),
    [
        ("CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x", "RETURNS STRING"),
        ("CREATE TEMP FUNCTION f() RETURNS TABLE (x INT) RETURN SELECT 1", "RETURNS TABLE ("),
        ("CREATE TEMPORARY FUNCTION f AS 'some.Class'", "RETURNS STRING"),
    ],
)
async def test_function_that_spark_refuses_breaks_only_its_own_name(
    text: str, returns: str
) -> None:
    _, a, b, session = await begun()
    await a.sessions.record(session, SqlEntry(text, effect_of_sql(text)))
    await a.sessions.record(session, made("w", 1))
    b.engine.fails.add(text)
    there = await entered(b)
    view, function, drop, fine = spark(there).ran
    assert "the temporary function f could not be made anew" in view and "no such table" in view
    assert "OR REPLACE TEMPORARY FUNCTION `f`(" in function and returns in function
    assert "DROP VIEW `HAPROC_SESSION_NOT_REBUILT" in drop and fine.endswith("w AS SELECT 1")
