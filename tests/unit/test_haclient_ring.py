"""The client and a ring that changes: discovery, order, draining, hedged reads; in both forms."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import haclient
from haclient import Failover, Outcome
from tests.unit.haclient_rig import (
    Open,
    connect,
    fails,
    run,
    serving,
    settle,
    until,
)
from tests.unit.haclient_server import (
    WAIT_S,
    Server,
    answering,
    busy,
    failing,
    finishing_while_draining,
    reset,
    slow,
    until_cancelled,
)

__all__ = ["connect"]

QUICK = {"refresh_s": 0.02, "failback_probe_s": 0.02, "failback_after_s": 0.05}


async def until_servers(connection: Any, *servers: Server) -> None:
    """Run statements until the client uses these servers, in this order."""
    wanted = tuple(server.url for server in servers)
    deadline = time.monotonic() + WAIT_S
    while connection.servers != wanted:
        assert time.monotonic() < deadline, f"{connection.servers}, not {wanted}"
        await run(connection)
        await asyncio.sleep(0.01)


async def refreshed(connection: Any, server: Server) -> None:
    """Run statements until the client has read the whole ring again, from now on."""
    earlier = server.status_requests
    deadline = time.monotonic() + WAIT_S
    # The first may have been under way; the third begins when the second has ended.
    while server.status_requests < earlier + 3:
        assert time.monotonic() < deadline, "the ring was not asked"
        await run(connection)
        await asyncio.sleep(0.001)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with serving(*"abc") as made:
        for server in made:
            server.ring = made
        yield made


# -- discovery ---------------------------------------------------------------------------------


async def test_ring_is_learned_from_one_server_and_used_when_that_one_fails(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers[1:2], **QUICK)
    b, a, c = servers[1], servers[0], servers[2]
    await until_servers(connection, b, a, c)
    b.stop()
    assert (await run(connection)).ha["cluster"] == "a"


async def test_first_statement_does_not_wait_for_discovery(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].probe_delay_s = 0.3
    connection = connect(servers[:1])
    assert (await run(connection)).ha["cluster"] == "a"
    assert connection.servers == (servers[0].url,)
    assert len(servers[0].seen) == 1


async def test_ring_is_queried_again_only_after_refresh_s(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, refresh_s=60.0)
    await run(connection)
    await until(lambda: all(server.status_requests == 1 for server in servers))
    for _ in range(5):
        await run(connection)
    assert [server.status_requests for server in servers] == [1, 1, 1]


async def test_disabled_discovery_sends_no_request(connect: Open, servers: list[Server]) -> None:
    connection = connect(servers[:2], discover=False, **QUICK)
    for _ in range(5):
        await run(connection)
    assert connection.servers == (servers[0].url, servers[1].url)
    assert not any(server.status_requests for server in servers)


async def test_server_without_topology_leaves_the_list_unchanged(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].ring = []
    connection = connect(servers[:2], **QUICK)
    await refreshed(connection, servers[0])
    assert connection.servers == (servers[0].url, servers[1].url)


async def test_joining_cluster_is_used_and_leaving_one_is_not(
    connect: Open, servers: list[Server]
) -> None:
    a, b, c = servers
    a.ring = [a, b]
    connection = connect([a], **QUICK)
    await until_servers(connection, a, b)
    a.ring = [a, b, c]
    await until_servers(connection, a, b, c)
    a.ring = [a, c]
    await until_servers(connection, a, c)


async def test_moved_cluster_is_found_at_its_new_address(
    connect: Open, servers: list[Server]
) -> None:
    a, b, moved = servers
    connection = connect([a, b], **QUICK)
    a.ring = [a, b]
    await refreshed(connection, a)
    moved.name = "b"
    moved.ring = b.ring = a.ring = [a, moved]
    b.stop()
    a.script.append(reset)  # goes on to b, finds nobody, and asks the ring again
    await run(connection)
    await until_servers(connection, a, moved)


async def test_cluster_moved_to_the_address_of_another_one_is_found(
    connect: Open, servers: list[Server]
) -> None:
    a, b, moved = servers
    connection = connect([a, b], **QUICK)
    await until_servers(connection, a, b, moved)  # as another cluster
    a.ring = [a, b]
    await until_servers(connection, a, b)
    moved.name = "b"
    moved.ring = b.ring = a.ring = [a, moved]
    b.stop()
    a.script.append(reset)
    await run(connection)
    await until_servers(connection, a, moved)


async def test_urls_that_do_not_answer_as_their_cluster_are_not_used(
    connect: Open, servers: list[Server]
) -> None:
    a, b, c = servers
    b.reported_url, c.reported_url = "http://127.0.0.1:9", a.url
    connection = connect([a], **QUICK)
    await refreshed(connection, a)
    assert connection.servers == (a.url,)


async def test_probes_and_discovery_send_the_token(connect: Open, servers: list[Server]) -> None:
    for server in servers:
        server.token = "secret"
    connection = connect(servers[:1], token="secret", **QUICK)
    await until_servers(connection, *servers)
    servers[0].script.append(failing(503, "availability", "HAPROC_DOWN"))
    assert (await run(connection)).ha["cluster"] == "b"
    await until(lambda: connection.server == servers[0].url)


# -- order -------------------------------------------------------------------------------------


async def test_spread_clients_start_at_different_servers_and_fail_over_evenly(
    connect: Open, servers: list[Server]
) -> None:
    connections = [
        connect(servers, order="spread", client_number=number, discover=False)
        for number in range(6)
    ]
    assert Counter(c.server for c in connections) == {server.url: 2 for server in servers}
    servers[0].stop()
    answering_clusters = [(await run(connection)).ha["cluster"] for connection in connections]
    assert Counter(answering_clusters) == {"b": 3, "c": 3}


async def test_nearest_order_uses_the_server_with_the_shortest_round_trip(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].probe_delay_s, servers[2].probe_delay_s = 0.15, 0.08
    connection = connect(servers, order="nearest", discover=False, **QUICK)
    await until_servers(connection, servers[1], servers[2], servers[0])
    await until(lambda: connection.server == servers[1].url)
    assert (await run(connection)).ha["cluster"] == "b"


async def test_wrong_connection_option_is_refused(connect: Open, servers: list[Server]) -> None:
    for wrong in ({"order": "random"}, {"hedge_after_s": 0}, {"client_number": -1}):
        with pytest.raises(haclient.InterfaceError):
            connect(servers, **wrong)


# -- draining ----------------------------------------------------------------------------------


async def test_answer_of_a_draining_server_moves_the_client_without_a_failover_event(
    connect: Open, servers: list[Server]
) -> None:
    events: list[Failover] = []
    connection = connect(servers, discover=False, on_failover=events.append, **QUICK)
    servers[0].script.append(finishing_while_draining)
    assert (await run(connection)).ha["cluster"] == "a"
    assert (await run(connection)).ha["cluster"] == "b"
    assert (len(servers[0].seen), events) == (1, [])


async def test_draining_server_is_left_at_once_and_not_used_until_ready(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, discover=False, circuit_s=0.001, **QUICK)
    await run(connection)
    servers[0].drain()
    assert [(await run(connection)).ha["cluster"] for _ in range(5)] == ["b"] * 5
    assert len(servers[0].seen) == 2
    servers[0].state, servers[0].ready = "READY", True
    await until(lambda: connection.server == servers[0].url)
    assert (await run(connection)).ha["cluster"] == "a"


async def test_draining_server_reported_by_the_ring_is_not_used(
    connect: Open, servers: list[Server]
) -> None:
    a, b, _ = servers
    connection = connect(servers, **QUICK)
    await refreshed(connection, a)
    b.drain()
    await refreshed(connection, a)
    a.stop()
    assert (await run(connection)).ha["cluster"] == "c"
    assert not b.seen


# -- hedged reads ------------------------------------------------------------------------------


async def test_hedged_query_is_answered_by_the_faster_server_and_cancelled_at_the_other(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, hedge_after_s=0.05, discover=False)
    servers[0].script.append(until_cancelled)
    cursor = await run(connection)
    assert (cursor.ha["cluster"], await settle(cursor.fetchall())) == ("b", [(1,)])
    request_id = servers[0].seen[0]["request_id"]
    assert servers[1].seen[0]["request_id"] == request_id == cursor.request_id
    await until(lambda: servers[0].cancelled == [request_id])
    assert not servers[1].cancelled and not servers[2].seen
    assert (await run(connection)).ha["cluster"] == "a", "slow is not failed"


async def test_hedged_query_whose_second_server_fails_is_answered_by_the_first(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, hedge_after_s=0.05, discover=False)
    servers[0].script.append(slow(0.4))
    servers[1].script.append(failing(503, "availability", "HAPROC_DOWN"))
    assert (await run(connection)).ha["cluster"] == "a"
    assert len(servers[1].seen) == 1


async def test_hedged_query_with_two_failures_goes_to_the_third_server(
    connect: Open, servers: list[Server]
) -> None:
    async def fail_late(server: Server, request: Any, body: Any) -> Any:
        await asyncio.sleep(0.2)
        return server.error(503, "availability", "HAPROC_DOWN")

    connection = connect(servers, hedge_after_s=0.05, discover=False)
    servers[0].script.append(fail_late)
    servers[1].script.append(fail_late)
    assert (await run(connection)).ha["cluster"] == "c"


async def test_application_error_of_a_hedgeable_query_is_raised_without_a_second_request(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, hedge_after_s=5.0, discover=False)
    with pytest.raises(haclient.ProgrammingError):
        await run(connection, "SELECT WRONG")
    assert not servers[1].seen


@pytest.mark.parametrize(
    ("hedge_after_s", "before", "sql"),
    [
        (0.02, [], "INSERT INTO t VALUES (1)"),
        (0.02, [], "UPDATE t SET a = 1"),
        (0.02, ["USE x"], "SELECT 1"),
        (None, [], "SELECT 1"),
    ],
    ids=["an INSERT", "an UPDATE", "in a session", "not asked for"],
)
async def test_statement_that_is_never_hedged_is_waited_for(
    connect: Open,
    servers: list[Server],
    hedge_after_s: float | None,
    before: list[str],
    sql: str,
) -> None:
    connection = connect(servers, hedge_after_s=hedge_after_s, discover=False)
    for text in before:
        await run(connection, text)
    servers[0].script.append(slow(0.3))
    assert (await run(connection, sql)).ha["cluster"] == "a"
    assert not servers[1].seen


async def test_hedging_at_p95_needs_recent_queries(connect: Open, servers: list[Server]) -> None:
    connection = connect(servers, hedge_after_s="p95", discover=False)
    servers[0].script.append(slow(0.3))
    await run(connection)
    assert not servers[1].seen
    for _ in range(120):
        await run(connection)
    servers[0].script.append(slow(3.0))
    assert (await run(connection)).ha["cluster"] == "b"


# -- what a connection has seen ----------------------------------------------------------------


async def test_last_offset_is_the_highest_one_of_all_answers(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, discover=False)
    assert connection.last_offset is None
    for offset in (0, 7, 5):
        servers[0].script.append(answering(None, {"log_offset": offset}))
        await run(connection)
    assert connection.last_offset == 7
    servers[0].script.append(failing(422, "application", "X", log_offset=9))
    await fails(connection)
    assert connection.last_offset == 9


async def test_connection_sends_the_tokens_of_all_its_answers(
    connect: Open, servers: list[Server]
) -> None:
    first, second = servers[:2]
    connection = connect([first, second], discover=False, consistency="session", after_offset=2)
    for ha in ({"log_offset": 7, "after_offset": 8}, {"after_offset": 11}, {"after_offset": 9}):
        first.script.append(answering(None, {"cluster": "a", **ha}))
        await run(connection)
    assert connection.after_offset == 11
    first.script.append(failing(503, "availability", "HAPROC_NOT_FRESH", outcome="NOT_SENT"))
    second.script.append(answering(None, {"cluster": "b", "after_offset": 12}))
    await run(connection)
    sent = first.seen + second.seen
    assert [body.get("seen") for body in sent] == [None, {"a": 8}, *[{"a": 11}] * 3]
    assert {(body["after_offset"], body["consistency"]) for body in sent} == {(2, "session")}
    assert connection.after_offset == 12


async def test_options_of_a_statement_take_precedence_over_those_of_the_connection(
    connect: Open, servers: list[Server]
) -> None:
    server = servers[0]
    connection = connect([server], discover=False, consistency="session", after_offset=2)
    await run(connection, consistency="any")
    assert server.seen[-1]["consistency"] == "any" and "after_offset" not in server.seen[-1]
    await run(connection, consistency="bounded", acceptable_offset_lag=5)
    expected = ("bounded", 5, 2)
    fields = ("consistency", "acceptable_offset_lag", "after_offset")
    assert tuple(server.seen[-1][field] for field in fields) == expected
    with pytest.raises(haclient.InterfaceError, match="acceptable_offset_lag"):
        await run(connection, acceptable_offset_lag="5")
    await run(connection, apply_budget_s=2.5)
    assert server.seen[-1]["apply_budget_s"] == 2.5
    with pytest.raises(haclient.InterfaceError, match="apply_budget_s must be a number"):
        await run(connection, apply_budget_s="5")


async def test_cache_option_is_sent_unchanged(connect: Open, servers: list[Server]) -> None:
    connection = connect([servers[0]], discover=False)
    for cache in (True, False, None):
        await run(connection, cache=cache)
    assert [body.get("cache") for body in servers[0].seen] == [True, False, None]
    with pytest.raises(haclient.InterfaceError, match="cache must be True or False"):
        await run(connection, cache="yes")


# -- servers with as much to do as they take -----------------------------------------------------


async def test_busy_servers_are_tried_again_until_the_deadline(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, outage_s=0.0, discover=False)
    servers[0].script.append(busy(0))
    assert (await run(connection)).ha["cluster"] == "b"
    for server in servers:
        server.script.append(failing(503, "availability", "HAPROC_NOT_FRESH", outcome="NOT_SENT"))
    assert (await run(connection)).ha["cluster"] == "a", "to be behind is no outage either"
    for server in servers:
        server.script.extend([busy(0)] * 4)
    assert (await run(connection)).ha["cluster"] == "a", "it is well"
    for server in servers:
        server.script.extend([busy(0), busy(0), busy(60)])
    error = await fails(connection, timeout_s=20.0)
    assert (error.outcome, error.error_class) == (Outcome.NOT_SENT, "HACLIENT_DEADLINE")


async def test_error_of_a_deadline_contains_the_last_message_of_a_server(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, discover=False)
    servers[0].script.extend([busy(0)])
    servers[1].script.extend([until_cancelled])
    with pytest.raises(
        haclient.Error, match="the deadline passed; the last one answered: said by a"
    ):
        await run(connection, timeout_s=1.0)


async def test_refused_retry_of_an_aged_request_has_outcome_unknown(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, discover=False)
    for server in servers:
        server.script.extend([busy(60)] * 2)
    for age_s, outcome in ((0.0, Outcome.NOT_SENT), (5.0, Outcome.UNKNOWN)):
        error = await fails(connection, timeout_s=20.0, age_s=age_s, request_id=f"r{age_s}")
        assert error.outcome == outcome
