"""The settings that a lane changes before a statement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haproc.engine import confs
from haproc.engine.confs import POOL, READING_POOL, pool_of, pool_of_lane, pool_of_rows
from haproc.engine.interface import Settings, TransactionMarker

_names = st.sampled_from(["a", "b", "c", "d"])
_wanted = st.dictionaries(_names, st.sampled_from(["1", "2"]))


@given(st.lists(st.tuples(_wanted, st.sampled_from(["made", "lost", "refused"]))))
def test_change_after_any_history_leaves_exactly_the_wanted_settings(
    history: list[tuple[dict[str, str], str]],
) -> None:
    server: dict[str, str] = {}
    in_force = confs.InForce()
    for want, fate in history:
        change = confs.change(in_force, want)
        in_force = confs.unknown_after(in_force, change)
        if fate != "refused":  # "lost": the server made the change, the answer did not arrive
            server.update(change.sets)
            for key in change.unsets:
                server.pop(key, None)
        if fate == "made":
            assert server == want
            in_force = confs.InForce(want)


def test_change_to_the_settings_in_force_is_empty() -> None:
    want = confs.wanted(Settings(), TransactionMarker("ring", 7))
    assert confs.change(confs.InForce(want), want) == confs.Change()


def test_pool_of_a_session_overrides_the_choice_of_its_client() -> None:
    chosen = Settings(confs=((POOL, "mine"), ("spark.sql.shuffle.partitions", "3")))
    want = confs.wanted(chosen, None, pool_of("ada"))
    assert (want[POOL], want["spark.sql.shuffle.partitions"]) == ("user/ada", "3")
    assert POOL not in confs.wanted(Settings(), None)
    assert POOL not in confs.wanted(chosen, None)  # in no session of HAProc's own, either


def test_only_sessions_of_users_have_access_to_cached_tables() -> None:
    cached = "spark.sql.haproc.cached"
    chosen = Settings(confs=((cached, "true"),))
    assert confs.wanted(Settings(), None, pool_of("ada"))[cached] == "true"
    # Nor by its client's wish.
    assert cached not in confs.wanted(chosen, TransactionMarker("ring", 7), pool_of_lane(0))
    assert cached not in confs.wanted(chosen, None, pool_of_rows("ada"))
    assert cached not in confs.wanted(chosen, None)


def test_sessions_of_users_and_of_plan_readings_are_guarded() -> None:
    guarded = "spark.sql.haproc.guarded"
    chosen = Settings(confs=((guarded, "false"),))
    for pool in (pool_of("ada"), READING_POOL):
        assert confs.wanted(chosen, None, pool)[guarded] == "[]"
        assert confs.wanted(chosen, None, pool, ("/a b",))[guarded] == '["/a b"]'
    assert guarded not in confs.wanted(Settings(), TransactionMarker("ring", 7), pool_of_lane(0))


def test_change_to_the_next_marker_sets_only_the_differences() -> None:
    before = confs.InForce(confs.wanted(Settings(), TransactionMarker("ring", 7)))
    change = confs.change(before, confs.wanted(Settings(), TransactionMarker("ring", 8)))
    assert {key for key, _ in change.sets} == set(confs.MARKER_CONFS[1:])
    assert not change.unsets


def test_change_to_no_marker_unsets_all_marker_settings() -> None:
    before = confs.InForce(confs.wanted(Settings(), TransactionMarker("ring", 7)))
    change = confs.change(before, confs.wanted(Settings(), None))
    assert set(change.unsets) == set(confs.MARKER_CONFS)


def test_wanted_settings_never_contain_a_forged_marker() -> None:
    forged = Settings(confs=tuple((name, "x") for name in confs.MARKER_CONFS))
    assert not set(confs.MARKER_CONFS) & set(confs.wanted(forged, None))
    assert confs.wanted(forged, TransactionMarker("ring", 7)) == confs.wanted(
        Settings(), TransactionMarker("ring", 7)
    )


@given(st.text(), st.integers(min_value=0))
def test_version_in_reads_the_version_that_user_metadata_wrote(ring: str, version: int) -> None:
    assert confs.version_in(confs.user_metadata(TransactionMarker(ring, version)), ring) == version


def test_version_in_a_note_of_another_writer_is_none() -> None:
    for note in ("", "x", "haproc:ring", "haproc:ring:", "haproc:ring:x", "haproc:ring2:7"):
        assert confs.version_in(note, "ring") is None


def test_use_statement_quotes_names() -> None:
    settings = Settings(catalog="my cat", schema="a`b.c")
    assert confs.use_statement(settings) == "USE `my cat`.`a``b`.`c`"


def test_resolved_change_sets_unset_keys_to_the_default_of_the_server() -> None:
    change = confs.Change((("a", "1"),), ("b", "c", confs.MARKER_CONFS[0]))
    assert confs.resolved(change, {"b": "2", "c": None}) == confs.Change(
        (("a", "1"),), ("c", confs.MARKER_CONFS[0]), (("b", "2"),)
    )
