"""Journals that an earlier version wrote are read, and go on as those of now."""

from __future__ import annotations

from dataclasses import replace

from haproc.engine.interface import Column, Settings
from haproc.sessions.durable import as_now
from haproc.sessions.journal import (
    ArtifactEntry,
    Effect,
    PlanEntry,
    SettingsEntry,
    SqlEntry,
    StateEntry,
    from_bytes,
)
from haproc.sessions.ownership import Key
from tests.unit.session_rig import DEFAULTS, FakeSpark, Ring

VIEW = "CREATE TEMP VIEW v AS SELECT 1"
FRAME = b"\x12\x13\x1a\x11\n\x0cR\n\n\x08SELECT 1\x12\x01D"
WRITTEN = (
    b'DQ\x01\x00{\x00\x00\x00{"kind":"session.settings","key":"r1","headers":{"settings":'
    b'["spark_catalog","s","UTC",true,[["a","1"]]],"earlier":["r0"]}}',
    b'DQ\x01\x00|\x00\x00\x00{"kind":"session.conf","key":"r1","headers":{"set":[["b","2"],'
    b'["haproc.consistency","any"]],"unset":["a"],"earlier":["r0"]}}',
    b'DQ\x01\x00>\x00\x00\x00{"kind":"session.sql","key":"r1","headers":{"earlier":["r0"]}}'
    b"CREATE TEMP VIEW v AS SELECT 1",
    b'DQ\x01\x00>\x00\x00\x00{"kind":"session.sql","key":"r1","headers":{"earlier":["r0"]}}'
    b"DECLARE hi INT DEFAULT 3",
    b'DQ\x01\x00?\x00\x00\x00{"kind":"session.plan","key":"r1","headers":{"earlier":["r0"]}}'
    + FRAME,
    b'DQ\x01\x00e\x00\x00\x00{"kind":"session.artifact","key":"r1","headers":{"name":"f",'
    b'"blobs":["0"],"size":6,"earlier":["r0"]}}',
)
"""Bytes of the version that kept what was done."""
FIRST = Settings(schema="s", confs=(("a", "1"),))
BEHIND = Settings(schema="s", confs=(("b", "2"),))


def test_entries_of_an_earlier_version_are_what_would_be_kept_now() -> None:
    read = [from_bytes(each) for each in WRITTEN]
    assert {each[1:] for each in read} == {(("r0", "r1"), None)}
    assert as_now([entry for entry, *_ in read], DEFAULTS) == [
        StateEntry(FIRST),
        StateEntry(BEHIND, (("haproc.consistency", "any"),)),
        SqlEntry(VIEW, Effect("view v", settings=BEHIND)),
        SqlEntry("DECLARE hi INT DEFAULT 3", Effect(settings=BEHIND)),
        PlanEntry(FRAME, Effect("view d", settings=BEHIND)),
        ArtifactEntry("f", ("0",), 6),
    ]


def test_entries_of_now_stay_as_they_are() -> None:
    made = SqlEntry(VIEW, Effect("view v", settings=BEHIND, columns=(("1", "int"),)))
    assert as_now([made, StateEntry(FIRST)], DEFAULTS) == [made, StateEntry(FIRST)]


async def test_session_of_an_earlier_version_goes_on() -> None:
    ring = Ring()
    a, b = ring.member("a"), ring.member("b")
    session = await a.sessions.enter("u", "s", create=True)
    for ordinal, data in enumerate(WRITTEN[:4]):
        await a.store.put(Key("u", "s").entry(ordinal, session.owner.name), data)
    there = await b.sessions.enter("u", "s", create=False)
    b.engine.columns["v"] = [Column("1", "int")]
    await there.spark.ready()
    assert isinstance(there.spark, FakeSpark)
    assert there.spark.ran == [f"s: {VIEW}", "s: DECLARE hi INT DEFAULT 3"]
    assert there.settings == BEHIND and there.has_recorded("r1")
    later = replace(BEHIND, schema="t")
    await b.sessions.record(there, SettingsEntry(later))
    assert [type(each.entry) for each in there.entries] == [SqlEntry, SqlEntry, StateEntry]
    assert (await a.sessions.enter("u", "s", create=False)).settings == later
