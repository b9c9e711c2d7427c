"""Tests of a session's settings after some were set by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from haproc import protos
from haproc.doors.connect import options
from haproc.engine.interface import Settings
from haproc.failure import RequestError
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import ConfEntry, SettingsEntry, with_confs
from tests.unit import session_rig

DEFAULTS = Settings(time_zone="UTC")
ANSI, ZONE = "spark.sql.ansi.enabled", "spark.sql.session.timeZone"


def test_time_zone_and_ansi_mode_are_set_and_unset_to_the_rings_values() -> None:
    changed, _ = with_confs(DEFAULTS, (), ((ANSI, "False"), (ZONE, "Asia/Tokyo")), (), DEFAULTS)
    assert (changed.ansi, changed.time_zone, changed.confs) == (False, "Asia/Tokyo", ())
    back, _ = with_confs(changed, (), (), (ANSI, ZONE), DEFAULTS)
    assert back == DEFAULTS


@pytest.mark.parametrize("name", [ANSI, ZONE])
def test_setting_name_in_another_case_has_no_effect_as_in_spark(name: str) -> None:
    """Otherwise its writes would run under it on every cluster, and its queries would not."""
    changed, _ = with_confs(DEFAULTS, (), ((name.upper(), "false"),), (), DEFAULTS)
    assert changed == DEFAULTS


# -- settings of the session's own ---------------------------------------------------------------

OWN = "spark.sql.legacy.sizeOfNull"
TRAVELS = "spark.sql.shuffle.partitions"


async def set_in(member: session_rig.Member, **values: str) -> ClientSession:
    session = await member.sessions.enter("ada", "s1", create=True)
    named = {"own": OWN, "travels": TRAVELS}
    sets = tuple((named[name], value) for name, value in values.items())
    await member.sessions.record(session, ConfEntry(sets))
    return session


async def test_own_setting_is_kept_and_restored_on_another_haproc() -> None:
    ring = session_rig.Ring()
    a, b = ring.member("a"), ring.member("b")
    session = await set_in(a, own="true", travels="3")
    assert session.settings.confs == ((OWN, "true"), (TRAVELS, "3"))
    there = await b.sessions.enter("ada", "s1", create=False)
    await there.spark.ready()
    assert isinstance(there.spark, session_rig.FakeSpark)
    assert there.spark.given.confs == there.settings.confs == session.settings.confs


@pytest.mark.parametrize("entry", [ConfEntry, SettingsEntry])
async def test_own_setting_with_the_default_value_counts_as_none(entry: type) -> None:
    """Otherwise the writes of a program that restores a value would be computed for ever."""
    member = session_rig.Ring().member()
    member.engine.untouched = {OWN: "false", TRAVELS: "200"}
    session = await set_in(member, own="true")
    assert session.settings.confs == ((OWN, "true"),)
    if entry is ConfEntry:
        await set_in(member, own="false", travels="200")
    else:
        now = replace(session.settings, confs=((OWN, "false"), (TRAVELS, "200")))
        await member.sessions.record(session, SettingsEntry(now))
    assert session.settings.confs == ((TRAVELS, "200"),)


def operation(**fields: Any) -> Any:
    made = protos.base.ConfigRequest.Operation()
    for key, value in fields.get("sets", {}).items():
        made.set.pairs.add(key=key, value=value)
    if "sets" in fields:
        made.set.silent = fields.get("silent", False)
    else:
        made.is_modifiable.keys.extend(fields["keys"])
    return made


def test_builder_settings_count_as_far_as_spark_accepted_them() -> None:
    sets = {OWN: "true", "spark.sql.caseSensitive": "true", "spark.sql.warehouse.dir": "/x"}
    request = options.checked(operation(sets={**sets, "haproc.fanout": "serial"}, silent=True))
    entry = options.entry(request)
    assert entry is not None
    assert "spark.sql.caseSensitive" not in dict(entry.sets)  # it is reserved
    held = {OWN: "true", "spark.sql.warehouse.dir": "/own"}
    assert options.taken(entry, held).sets == ((OWN, "true"), ("haproc.fanout", "serial"))
    with pytest.raises(RequestError, match="it changes what a name means"):
        options.checked(operation(sets=sets))


def test_reserved_setting_is_reported_as_not_modifiable() -> None:
    request = operation(keys=[OWN, "spark.sql.caseSensitive", "haproc.fanout"])
    response = protos.base.ConfigResponse()
    for key in (OWN, "spark.sql.caseSensitive"):
        response.pairs.add(key=key, value="true")
    to_client = protos.base.ConfigResponse.FromString(
        options.answer(request, response.SerializeToString(), {})
    )
    assert [pair.value for pair in to_client.pairs] == ["true", "false", "true"]
