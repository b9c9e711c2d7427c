"""The servers in use, given what is known about them (haclient/topology.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.settings import parse_servers, server_at
from haclient.topology import SERVERS_MAX, Member, Roster, Topology, parse

A, B, C = "http://10.0.0.1:80", "http://10.0.0.2:80", "http://10.0.0.3:80"


def ring(me: str, **urls: str) -> Topology:
    members = tuple(Member(name, url, "READY") for name, url in urls.items())
    return Topology("ring", me, "READY", members)


def used(roster: Roster) -> list[str]:
    return [roster.known[index].server.url for index in roster.in_use()]


def described_by(seeds: str, by: str, **urls: str) -> Roster:
    """Return the roster after the first seed has described the ring."""
    roster = Roster.of(parse_servers(seeds))
    return roster.described_by(roster.known[0].server, ring(by, **urls)).identified(
        0, ring(by, **urls)
    )


def at(roster: Roster, url: str) -> int:
    return next(i for i, each in enumerate(roster.known) if each.server.url == url)


def test_new_roster_uses_the_seeds() -> None:
    assert used(Roster.of(parse_servers(f"{B},{A}"))) == [B, A]


def test_learned_server_is_used_after_it_has_answered() -> None:
    roster = described_by(A, "a", a=A, b=B)
    assert used(roster) == [A]
    assert roster.unidentified((), everybody=False) == (1,)
    roster = roster.identified(1, ring("b"))
    assert used(roster) == [A, B]
    assert roster.unidentified((), everybody=False) == ()
    assert roster.unidentified({1}, everybody=False) == (1,)
    assert roster.unidentified((), everybody=True) == (0, 1)


def test_learned_url_with_an_answer_of_another_cluster_or_ring_is_not_used() -> None:
    roster = described_by(A, "a", a=A, b=B)
    assert used(roster.identified(1, ring("x"))) == [A]
    assert used(roster.identified(1, Topology("other", "b", "READY", ()))) == [A]


def test_seed_known_by_another_url_is_not_listed_twice() -> None:
    roster = described_by("http://gate:1,http://gate:2", "a", a=A, b=B).identified(1, ring("b"))
    for index in range(2, len(roster.known)):
        roster = roster.identified(index, ring("ab"[index - 2]))
    assert used(roster) == ["http://gate:1", "http://gate:2"]


def test_moved_cluster_takes_the_place_of_its_seed() -> None:
    roster = described_by(f"{A},{B}", "a", a=A, b=B).identified(1, ring("b"))
    moved = ring("a", a=A, b=C)
    roster = roster.described_by(roster.known[0].server, moved).identified(1, None)
    assert used(roster) == [A, B], "nobody has answered at the new place yet"
    roster = roster.identified(at(roster, C), ring("b"))
    assert used(roster) == [A, C]
    assert used(roster.identified(1, ring("b"))) == [A, B], "the seed comes first if it answers"


def test_learned_cluster_that_moved_is_used_at_its_last_url() -> None:
    roster = described_by(A, "a", a=A, b=B).identified(1, ring("b"))
    roster = roster.described_by(roster.known[0].server, ring("a", a=A, b=C))
    assert used(roster) == [A, B]
    assert used(roster.identified(at(roster, C), ring("b"))) == [A, C]


def test_server_reported_as_another_cluster_is_queried_again() -> None:
    roster = described_by("http://a:1", by="a", a="http://a:1", c="http://c:1")
    roster = roster.identified(at(roster, "http://c:1"), ring("c"))
    assert roster.unidentified((), everybody=False) == ()
    roster = roster.described_by(roster.known[0].server, ring("a", a="http://a:1", b="http://c:1"))
    assert roster.unidentified((), everybody=False) == (at(roster, "http://c:1"),)
    roster = roster.identified(at(roster, "http://c:1"), ring("b"))
    assert roster.unidentified((), everybody=False) == ()
    assert used(roster) == ["http://a:1", "http://c:1"]


def test_cluster_that_left_the_ring_is_dropped_but_a_seed_stays_last() -> None:
    roster = described_by(f"{A},{B}", "a", a=A, b=B, c=C)
    roster = roster.identified(1, ring("b")).identified(2, ring("c"))
    assert used(roster) == [A, B, C]
    assert used(roster.described_by(roster.known[0].server, ring("a", a=A, b=B))) == [A, B]
    assert used(roster.described_by(roster.known[0].server, ring("a", a=A, c=C))) == [A, C, B]


@pytest.mark.parametrize(
    ("by", "url", "followed"),
    [
        (A, "http://10.0.0.9:80", True),
        (A, "https://10.0.0.9", True),
        ("https://10.0.0.1", "http://10.0.0.9:80", False),
        (A, "http://127.0.0.1:80", False),
        (A, "http://localhost:80", False),
        ("http://localhost:1", "http://127.0.0.1:2", True),
        (A, "not a url", False),
        (A, "http://me@10.0.0.9", False),
    ],
)
def test_learned_url_is_followed_only_if_the_token_may_be_sent_there(
    by: str, url: str, followed: bool
) -> None:
    roster = Roster.of((server_at(0, by),)).described_by(server_at(0, by), ring("a", b=url))
    assert (len(roster.known) == 2) is followed


def test_number_of_learned_servers_is_limited() -> None:
    urls = {f"m{n}": f"http://10.1.{n // 250}.{n % 250}:80" for n in range(SERVERS_MAX + 50)}
    assert len(described_by(A, "a", **urls).known) == SERVERS_MAX


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"{}"),
        (200, b"not JSON"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"ring":"r","cluster":"a","state":"READY","clusters":5}'),
        (200, b'{"ring":"r","cluster":"a","state":"READY","clusters":[{"name":"a"}]}'),
        (200, b"\xff"),
    ],
)
def test_parse_of_anything_else_returns_none(status: int, body: bytes) -> None:
    assert parse(status, body) is None


def test_parse_reads_a_cluster_status() -> None:
    status_body: dict[str, Any] = {"ring": "r", "cluster": "a", "state": "DRAINING", "more": 1}
    status_body["clusters"] = [{"name": "a", "url": A, "state": "READY"}, {"name": "b", "url": B}]
    found = parse(200, json.dumps(status_body).encode())
    assert found == Topology("r", "a", "DRAINING", (Member("a", A, "READY"), Member("b", B, "")))


names = st.sampled_from("abcd")
urls = st.sampled_from([A, B, C, "http://10.0.0.4:80", "http://10.0.0.5:80"])
events = st.one_of(
    st.dictionaries(names, urls, max_size=4),
    st.tuples(st.integers(0, 8), st.none() | names),
)


@given(seeds=st.lists(urls, min_size=1, max_size=3, unique=True), happened=st.lists(events))
def test_roster_in_use_contains_answering_seeds_after_any_events(
    seeds: list[str], happened: list[Any]
) -> None:
    roster = Roster.of(parse_servers(seeds))
    for event in happened:
        if isinstance(event, dict):
            roster = roster.described_by(roster.known[0].server, ring("a", **event))
        else:
            index, name = event
            index %= len(roster.known)
            roster = roster.identified(index, None if name is None else ring(name))
        found = roster.in_use()
        assert found and len(set(found)) == len(found)
        for index, each in enumerate(roster.known):
            if index < roster.seeds and (each.answers or not each.cluster):
                assert index in found, "a seed that answers, or has told nothing, is in use"
            if index >= roster.seeds and index in found:
                assert each.cluster, "nothing learned is used before it has answered"
