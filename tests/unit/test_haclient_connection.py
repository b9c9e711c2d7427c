"""The client against real servers that answer, fail and misbehave; blocking and asyncio alike."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import haclient
from haclient import Failover, FailureKind, Outcome
from tests.unit.haclient_rig import (
    BIG,
    UNAVAILABLE,
    Open,
    connect,
    fails,
    gather,
    run,
    servers,
    settle,
    until,
)
from tests.unit.haclient_server import (
    WAIT_S,
    Server,
    answering,
    breaking_off,
    chunked,
    failing,
    freezing,
    reset,
    slow,
)

__all__ = ["connect", "servers"]


async def test_execute_query_returns_rows_description_and_report(
    connect: Open, servers: list[Server]
) -> None:
    cursor = await run(connect(servers, token="secret", catalog="c", schema="s"))
    assert await settle(cursor.fetchall()) == [(1,)]
    assert cursor.description[0][:2] == ("n", haclient.NUMBER)
    assert (cursor.ha["cluster"], cursor.rowcount, cursor.server) == ("a", -1, servers[0].url)
    body = servers[0].seen[0]
    assert body["request_id"] == cursor.request_id
    assert (body["catalog"], body["schema"], body["timeout_s"]) == ("c", "s", 299.75)
    assert servers[0].headers[0]["Authorization"] == "Bearer secret"


async def test_execute_with_options_and_parameters_sends_them(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    options = {"fanout": "parallel", "write_concern": "all"}
    await run(connection, "SELECT :x", {"x": 1}, request_id="mine", timeout_s=1, **options)
    body = servers[0].seen[0]
    assert body["parameters"] == [{"name": "x", "value": "1", "type": "INT"}]
    assert (body["request_id"], body["fanout"], body["timeout_s"]) == ("mine", "parallel", 0.9)
    assert body["write_concern"] == "all"
    with pytest.raises(haclient.InterfaceError, match="consistancy"):
        await run(connection, consistancy="any")


async def test_fetch_in_parts_returns_every_row_once(connect: Open, servers: list[Server]) -> None:
    servers[0].script.append(chunked(BIG, 1000))
    cursor = await run(connect(servers))
    assert await settle(cursor.fetchone()) == (0,)
    assert await settle(cursor.fetchmany(2)) == [(1,), (2,)]
    assert (await settle(cursor.fetchmany())) == [(3,)]
    batches = cursor.fetch_arrow_batches()
    first = await anext(batches) if hasattr(batches, "__anext__") else next(batches)
    assert first.column(0).to_pylist() == list(range(4, 1000))
    assert (await settle(cursor.fetch_arrow_table())).num_rows == 19_000
    assert await settle(cursor.fetchall()) == []
    assert await settle(cursor.fetchone()) is None


async def test_fetch_as_table_pandas_and_by_iteration_returns_all_rows(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    for _ in range(3):
        servers[0].script.append(answering(BIG))
    assert (await settle((await run(connection)).fetch_arrow_table())).equals(BIG)
    assert (await settle((await run(connection)).fetch_pandas())).n.sum() == sum(range(20_000))
    assert len(await gather(await run(connection))) == 20_000


async def test_fetch_without_a_result_raises_programming_error(
    connect: Open, servers: list[Server]
) -> None:
    cursor = await run(connect(servers), "INSERT INTO t VALUES (1)")
    assert (cursor.description, cursor.rowcount) == (None, 1)
    with pytest.raises(haclient.ProgrammingError):
        await settle(cursor.fetchone())


async def test_executemany_of_a_row_insert_is_one_operation(
    connect: Open, servers: list[Server]
) -> None:
    cursor = connect(servers).cursor()
    await settle(cursor.executemany("INSERT INTO t VALUES (?)", [[1], [2], [3]]))
    assert cursor.rowcount == 3
    assert [row[0]["value"] for row in servers[0].seen[0]["parameter_rows"]] == ["1", "2", "3"]


async def test_executemany_counts_rows_that_the_server_does_not_count(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].script.append(answering(pa.table({}), {"affected_rows": None}))
    cursor = connect(servers).cursor()
    await settle(cursor.executemany("INSERT INTO t VALUES (?)", [[n] for n in range(1000)]))
    assert cursor.rowcount == 1000


async def test_nextset_discards_the_result_and_returns_none(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].script.append(answering(pa.table({"n": [1]})))
    cursor = connect(servers).cursor()
    await settle(cursor.execute("SELECT 1"))
    assert await settle(cursor.nextset()) is None
    with pytest.raises(haclient.ProgrammingError):
        await settle(cursor.nextset())


async def test_executemany_of_another_statement_derives_request_ids(
    connect: Open, servers: list[Server]
) -> None:
    cursor = connect(servers).cursor()
    await settle(cursor.executemany("UPDATE t SET a = ?", [[1], [2]], request_id="id"))
    assert [body["request_id"] for body in servers[0].seen] == ["id.1", "id.2"]
    assert cursor.request_id == "id"
    await settle(cursor.executemany("INSERT INTO t VALUES (?)", []))
    assert (cursor.rowcount, len(servers[0].seen)) == (0, 2)


async def test_append_sends_the_rows_as_arrow(connect: Open, servers: list[Server]) -> None:
    connection = connect(servers, schema="s")
    report = await settle(connection.append("c.s.t", BIG.to_pandas(), request_id="r"))
    assert report["affected_rows"] == 20_000
    table, query, rows = servers[0].appended[0]
    assert (table, query["schema"], query["request_id"], rows) == ("c.s.t", "s", "r", BIG)


async def test_application_error_is_raised_without_failover(
    connect: Open, servers: list[Server]
) -> None:
    error = await fails(connect(servers), "WRONG")
    assert isinstance(error, haclient.ProgrammingError)
    assert (error.kind, error.outcome) == (FailureKind.APPLICATION, Outcome.REJECTED)
    assert (error.error_class, error.sqlstate) == ("TABLE_OR_VIEW_NOT_FOUND", "42P01")
    assert (error.cluster, error.request_id) == ("a", servers[0].seen[0]["request_id"])
    assert not servers[1].seen


@pytest.mark.parametrize(
    "behaviour",
    [
        UNAVAILABLE,
        reset,
        breaking_off(BIG, 1000, 0.0),
        breaking_off(BIG, 1000, 0.5),
    ],
    ids=["503", "reset", "no body", "half a body"],
)
async def test_availability_error_fails_over_with_the_same_request_id(
    connect: Open, servers: list[Server], behaviour: Any
) -> None:
    events: list[Failover] = []
    connection = connect(servers, on_failover=events.append)
    await run(connection)
    servers[0].script.append(behaviour)
    cursor = await run(connection)
    assert cursor.ha["cluster"] == "b"
    assert await settle(cursor.fetchall()) == [(1,)]
    again = servers[1].seen[0]
    assert again.pop("age_s") > 0
    assert servers[0].seen[1] == again
    assert [(e.failed, e.next) for e in events] == [(servers[0].url, servers[1].url)]
    assert (await run(connection)).ha["cluster"] == "b", "sticky"


async def test_unexplained_error_on_two_clusters_is_raised_as_the_error_of_the_request(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    for server in servers:
        server.script.extend([failing(503, "availability", "HAPROC_UNKNOWN_ERROR")] * 9)
    with pytest.raises(haclient.DatabaseError, match="HAPROC_UNKNOWN_ERROR") as caught:
        await run(connection)
    assert not isinstance(caught.value, haclient.OperationalError)
    assert "nested too deep" in str(caught.value) and caught.value.outcome.value == "NOT_SENT"
    assert [len(server.seen) for server in servers][:2] == [1, 1]
    assert sum(len(server.seen) for server in servers) == 2


async def test_age_is_counted_from_the_first_attempt_also_of_another_client(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    await run(connection)
    assert "age_s" not in servers[0].seen[0]
    servers[0].script.append(UNAVAILABLE)
    cursor = connection.cursor()
    await settle(cursor.execute("SELECT 1", request_id="mine", age_s=60.0))
    assert servers[0].seen[1]["age_s"] == 60
    assert 60 < servers[1].seen[0]["age_s"] < 60 + WAIT_S
    await settle(connection.append("t", BIG.to_pandas(), request_id="r", age_s=2.5))
    assert servers[1].appended[0][1]["age_s"] == "2.500"
    assert "write_concern" not in servers[1].appended[0][1]
    await settle(connection.append("t", BIG.to_pandas(), write_concern="all"))
    assert servers[1].appended[1][1]["write_concern"] == "all"
    with pytest.raises(haclient.InterfaceError, match="age_s"):
        await settle(cursor.execute("SELECT 1", age_s=-1.0))


async def test_killed_server_is_left_without_a_backoff(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, backoff_first_s=10.0, backoff_max_s=10.0)
    await run(connection)
    servers[0].stop()
    begun = time.monotonic()
    assert (await run(connection)).ha["cluster"] == "b"
    assert time.monotonic() - begun < 5.0, "no backoff in the first round"


async def test_hung_server_is_left_after_missed_probes(
    connect: Open, servers: list[Server]
) -> None:
    events: list[Failover] = []
    connection = connect(
        servers, on_failover=events.append, silence_s=0.1, probe_timeout_s=0.1, timeout_s=20
    )
    servers[0].script.append(freezing)
    assert (await run(connection)).ha["cluster"] == "b"
    assert "does not answer" in events[0].message
    servers[0].thaw()


async def test_long_statement_on_a_living_server_is_waited_for(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, silence_s=0.05)
    servers[0].script.append(slow(0.6))
    assert (await run(connection)).ha["cluster"] == "a"
    assert not servers[1].seen


async def test_deadline_on_a_living_server_gives_outcome_unknown(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    servers[0].script.append(slow(10.0))
    error = await fails(connection, timeout_s=0.3)
    assert isinstance(error, haclient.OperationalError)
    assert (error.outcome, error.error_class) == (Outcome.UNKNOWN, "HACLIENT_DEADLINE")
    assert error.request_id in error.hint
    assert not servers[1].seen


async def test_unreachable_servers_give_outcome_not_sent(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, outage_s=0.2)
    for server in servers:
        server.stop()
    error = await fails(connection)
    assert (error.outcome, error.error_class) == (Outcome.NOT_SENT, "HACLIENT_OUTAGE")
    for server in servers:
        server.start()
    assert (await run(connection)).ha["cluster"] == "a"


async def test_broken_connections_to_all_servers_give_outcome_unknown(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, outage_s=0.0)
    for server in servers:
        server.script.append(reset)
    error = await fails(connection, "INSERT INTO t VALUES (1)")
    assert (error.outcome, error.kind) == (Outcome.UNKNOWN, FailureKind.AVAILABILITY)
    assert all(len(server.seen) == 1 for server in servers)


async def test_rejection_after_a_broken_attempt_counts_only_with_a_log_offset(
    connect: Open, servers: list[Server]
) -> None:
    for offset, outcome in ((None, Outcome.UNKNOWN), (17, Outcome.REJECTED)):
        connection = connect(servers)
        servers[0].script.append(reset)
        servers[1].script.append(failing(422, "application", "X", log_offset=offset))
        assert (await fails(connection)).outcome is outcome


async def test_rounds_are_repeated_until_a_server_is_available(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, backoff_first_s=0.01)
    for server in servers:
        server.script.extend([UNAVAILABLE] * 3)
    cursor = await run(connection)
    assert len(servers[0].seen) + len(servers[1].seen) == 7
    assert cursor.ha["cluster"] == "a"


async def test_failback_goes_to_the_first_server_after_it_has_been_ready(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, failback_probe_s=0.02, failback_after_s=0.05)
    servers[0].ready = False
    servers[0].script.append(UNAVAILABLE)
    await run(connection)
    assert connection.server == servers[1].url
    servers[0].ready = True
    await until(lambda: connection.server == servers[0].url)
    assert (await run(connection)).ha["cluster"] == "a"


async def test_large_result_streams_and_a_break_is_an_error(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, buffer_bytes_max=10_000)
    servers[0].script.append(chunked(BIG, 1000))
    cursor = await run(connection)
    assert await settle(cursor.fetch_arrow_table()) == BIG
    servers[0].script.append(breaking_off(BIG, 1000, 0.9))
    cursor = await run(connection)
    assert await settle(cursor.fetchone()) == (0,)
    with pytest.raises(haclient.OperationalError) as raised:
        await settle(cursor.fetchall())
    assert raised.value.error_class == "HACLIENT_RESULT_BROKEN"
    assert raised.value.outcome is Outcome.NOT_SENT
    assert (await run(connection)).ha["cluster"] == "a"


async def test_stream_option_returns_rows_before_the_end(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].script.append(breaking_off(BIG, 10, 0.5))
    cursor = await run(connect(servers), stream=True)
    assert await settle(cursor.fetchone()) == (0,)
    await settle(cursor.close())


async def test_session_is_opened_on_demand_and_kept(connect: Open, servers: list[Server]) -> None:
    connection = connect(servers, schema="s`x")
    await run(connection, "USE x")
    await run(connection)
    (session,) = servers[0].sessions.values()
    assert session == ["USE `s``x`", "USE x"]
    assert "schema" not in servers[0].seen[-1]
    assert servers[0].seen[-1]["session_id"] in servers[0].sessions


async def test_session_continues_on_another_server_under_its_id(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    await run(connection, "USE x")
    servers[1].sessions = servers[0].sessions  # the ring's
    servers[0].stop()
    assert (await run(connection, "USE y")).ha["cluster"] == "b"
    assert list(servers[1].sessions.values()) == [["USE x", "USE y"]]
    await settle(connection.close())
    assert not servers[1].sessions


async def test_session_that_the_ring_does_not_know_any_more_raises_an_error(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    await run(connection, "USE x")
    servers[0].sessions.clear()
    assert (await fails(connection)).error_class == "HAPROC_SESSION_UNKNOWN"
    assert not servers[0].sessions


async def test_append_in_a_session_uses_the_schema_of_the_session(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers, schema="s")
    await run(connection, "USE x")
    servers[0].script.append(answering(pa.table({"c": ["cat"], "s": ["x"]})))
    await settle(connection.append("t", BIG))
    assert servers[0].appended[0][1]["schema"] == "x"


async def test_closed_connection_and_cursor_refuse_work(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    cursor = connection.cursor()
    await settle(cursor.close())
    with pytest.raises(haclient.InterfaceError):
        await settle(cursor.execute("SELECT 1"))
    await settle(connection.commit())
    with pytest.raises(haclient.NotSupportedError):
        await settle(connection.rollback())
    await settle(connection.close())
    with pytest.raises(haclient.InterfaceError):
        connection.cursor()


@pytest.mark.parametrize(
    "answer",
    [
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"",
    ],
)
async def test_broken_http_answer_causes_a_failover(
    connect: Open, servers: list[Server], answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(WAIT_S)
                while b"SELECT 1" not in peer.recv(65536):
                    pass
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        servers[0].stop()
        broken = Server.__new__(Server)
        broken.port = listener.getsockname()[1]
        connection = connect([broken, servers[1]])
        assert (await run(connection)).ha["cluster"] == "b"
        thread.join(WAIT_S)
