"""PySpark sessions of haclient.spark with servers that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

import haclient
from haclient import Failover
from haclient.failover import Memory
from tests.unit.spark_connect_server import ROWS, Server

WAIT_S = 20.0
PATIENT: dict[str, Any] = {"connect_timeout_s": 10.0, "probe_timeout_s": 10.0}
"""These servers share a busy machine with their clients."""
QUICK_BACK: dict[str, Any] = {"failback_probe_s": 0.02, "failback_after_s": 0.05}
TLS = Path(__file__).parents[1] / "integration/tls"


class Sessions:
    """Opens sessions on servers; keeps the failovers that they report."""

    def __init__(self) -> None:
        self.failovers: list[Failover] = []
        self._opened: list[Any] = []

    def __call__(self, *servers: Server, parameters: str = "", **options: Any) -> Any:
        url = "sc://" + ",".join(server.address for server in servers) + f"/{parameters}"
        options = {**PATIENT, "on_failover": self.failovers.append, **options}
        session = haclient.spark(url, **options)
        self._opened.append(session)
        return session

    def close(self) -> None:
        for session in self._opened:
            session.stop()
        SparkSession._default_session = None


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(name) for name in "abc"]
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def opened(servers: list[Server]) -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.close()
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def numbers(result: list[Any]) -> list[int]:
    return [row.n for row in result]


def names(result: list[Any]) -> str:
    """Return the names of the servers whose rows a result has, in order."""
    return "".join(dict.fromkeys(row.by for row in result))


def read(session: Any, table: str = "quick") -> list[Any]:
    return list(session.table(table).collect())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@contextmanager
def slowly_read(session: Any, server: Server) -> Iterator[Future[list[Any]]]:
    """Read in a thread; the server has the statement, and answers when the test lets it go on."""
    before = len(server.calls("ExecutePlan"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(read, session, "slow")
        until(lambda: len(server.calls("ExecutePlan")) > before)
        yield running


def channel(session: Any) -> Any:
    return session.client._channel


def test_session_with_healthy_servers_stays_with_the_first(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    for _ in range(3):
        assert numbers(read(session)) == list(range(ROWS))
    assert session.conf.get("x") == "a"
    assert not servers[1].seen
    assert not opened.failovers


def test_session_whose_first_server_is_down_is_answered_by_the_next(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    servers[0].stop()
    assert names(read(session)) == "b"
    assert names(read(session)) == "b"


def test_session_whose_server_stops_between_statements_continues_on_another(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    assert names(read(session)) == "a"
    servers[0].stop()
    assert session.conf.get("x") == "b"
    assert names(read(session)) == "b"
    assert {each.request.session_id for each in servers[1].seen} == {session.session_id}


def test_statement_interrupted_before_its_first_row_is_sent_to_another_server_under_its_id(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    with slowly_read(session, servers[0]) as running:
        servers[1].go_on.set()
        servers[0].stop()
        assert names(running.result(WAIT_S)) == "b"
    first, second = (server.calls("ExecutePlan") for server in servers[:2])
    assert [each.operation_id for each in first] == [each.operation_id for each in second]
    assert not servers[1].calls("ReattachExecute")
    assert "haproc-age-s" not in first[0].metadata
    assert 0 < float(second[0].metadata["haproc-age-s"]) < WAIT_S


def test_result_interrupted_midway_is_continued_on_another_server(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    rows = session.table("halting").toLocalIterator()
    found = [next(rows), next(rows)]
    servers[0].stop()
    found += rows
    assert numbers(found) == list(range(ROWS))
    assert names(found) == "ab"
    assert opened.failovers[0].failed == f"sc://{servers[0].address}"
    assert opened.failovers[0].next == f"sc://{servers[1].address}"


def test_result_that_no_other_server_can_continue_ends_with_an_error(
    opened: Sessions, servers: list[Server]
) -> None:
    rows = opened(*servers).table("forgotten").toLocalIterator()
    assert [next(rows).n, next(rows).n] == [0, 1]
    servers[0].stop()
    with pytest.raises(PySparkException, match="RESPONSE_ALREADY_RECEIVED"):
        list(rows)


def test_result_that_the_server_cuts_is_reattached_there(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    assert names(read(session, "cut")) == "a"
    assert len(servers[0].calls("ReattachExecute")) == 1


def test_application_error_is_raised_without_a_failover(
    opened: Sessions, servers: list[Server]
) -> None:
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        read(opened(*servers), "wrong")
    assert not servers[1].seen


def test_statement_that_no_server_accepts_ends_after_the_outage_time(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers, outage_s=0.2)
    begun = time.monotonic()
    with pytest.raises(PySparkException, match="HACLIENT_OUTAGE"):
        read(session, "away")
    assert time.monotonic() - begun < WAIT_S / 2, "PySpark does not try it all over again"
    assert all(server.calls("ExecutePlan") for server in servers)


def test_busy_servers_do_not_count_as_an_outage(opened: Sessions, servers: list[Server]) -> None:
    session = opened(*servers, outage_s=0.0, busy_s=1.0)
    with pytest.raises(PySparkException, match="HACLIENT_BUSY"):
        read(session, "busy")
    assert all(len(server.calls("ExecutePlan")) > 1 for server in servers)


def test_draining_server_finishes_its_statements_and_gets_no_new_ones(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers, **QUICK_BACK)
    with slowly_read(session, servers[0]) as running:
        servers[0].draining = True
        assert names(read(session)) == "b"
        servers[0].go_on.set()
        assert names(running.result(WAIT_S)) == "a"
        servers[0].draining = False
        until(lambda: names(read(session)) == "a")


def test_statement_at_a_server_that_has_closed_its_door_is_completed(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers, silence_s=0.01)
    with slowly_read(session, servers[0]) as running:
        servers[0].stop(grace_s=WAIT_S)
        with pytest.raises(TimeoutError):
            running.result(1.0)  # a dozen refused probes
        assert names(read(session)) == "b"
        servers[0].go_on.set()
        assert names(running.result(WAIT_S)) == "a"


def test_session_fails_back_to_a_preferred_server_but_not_during_a_statement(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers, **QUICK_BACK)
    servers[0].stop()
    assert names(read(session)) == "b"
    with slowly_read(session, servers[1]) as running:
        servers[0].start()
        memory = channel(session).view
        until(lambda: memory.memory.servers[0].ready_since is not None)
        time.sleep(2 * QUICK_BACK["failback_after_s"])  # long enough to go back, were it allowed
        assert names(read(session)) == "b"
        servers[1].go_on.set()
        assert names(running.result(WAIT_S)) == "b"
    until(lambda: names(read(session)) == "a")


def test_session_with_a_checkpoint_does_not_fail_back(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers, **QUICK_BACK)
    servers[0].stop()
    session.table("quick").localCheckpoint()
    servers[0].start()
    view = channel(session).view
    until(lambda: view.memory.servers[0].ready_since is not None)
    time.sleep(2 * QUICK_BACK["failback_after_s"])
    assert names(read(session)) == "b"


def test_finalizer_that_calls_the_client_under_a_lock_neither_hangs_nor_is_lost(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    read(session)
    servers[1].stop()  # else it may say that it is ready, and so not leaving, before the last look
    held, view, done = channel(session), channel(session).view, list[str]()

    def finalize() -> None:
        """Like the finalizer of PySpark's checkpoints, which can run wherever Python
        collects them.
        """
        read(session)
        view.left(view.server(1))
        done.append("asked")

    def change(memory: Memory) -> Memory:
        if not done:
            finalize()
        return memory

    def collected() -> None:
        view.update(change)
        with held.links._lock:
            finalize()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive() and len(done) == 2
    assert view.memory.servers[1].leaving


def test_artifacts_whose_server_stops_midway_are_sent_again_completely(
    opened: Sessions, servers: list[Server], tmp_path: Path
) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(os.urandom(1 << 20))
    servers[0].wait_s = 0.05
    session = opened(*servers)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.addArtifact, str(path), file=True)
        until(lambda: len(servers[0].calls("AddArtifacts")) > 2)
        servers[0].stop()
        running.result(WAIT_S)
    sent = [each.request for each in servers[1].calls("AddArtifacts")]
    assert sent[0].begin_chunk.total_bytes == 1 << 20
    chunks = [sent[0].begin_chunk.initial_chunk, *(each.chunk for each in sent[1:])]
    assert b"".join(chunk.data for chunk in chunks) == path.read_bytes()


def test_threads_whose_server_stops_all_continue_on_another(
    opened: Sessions, servers: list[Server]
) -> None:
    session = opened(*servers)
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(read, session, "slow") for _ in range(8)]
        until(lambda: len(servers[0].calls("ExecutePlan")) == 8)
        servers[1].go_on.set()
        servers[0].stop()
        assert [names(each.result(WAIT_S)) for each in running] == ["b"] * 8
    assert not servers[2].seen


def test_parameters_of_the_url_are_sent_as_metadata(
    opened: Sessions, servers: list[Server]
) -> None:
    read(opened(*servers, parameters=";haproc-consistency=any;user_id=me"))
    seen = servers[0].calls("ExecutePlan")[0]
    assert seen.metadata["haproc-consistency"] == "any"
    assert seen.request.user_context.user_id == "me"


def test_token_is_sent_over_tls_with_a_private_ca(opened: Sessions) -> None:
    pem = (TLS / "broker.pem").read_bytes()
    key, _, rest = pem.partition(b"-----BEGIN CERTIFICATE-----")
    certificates = b"-----BEGIN CERTIFICATE-----" + rest
    credentials = grpc.ssl_server_credentials([(key, certificates)])
    server = Server("a", credentials=credentials)
    try:
        options: dict[str, Any] = {
            "parameters": ";use_ssl=true;token=secret",
            "ca_file": TLS / "ca.pem",
        }
        assert names(read(opened(server, **options))) == "a"
        assert server.seen[0].metadata["authorization"] == "Bearer secret"
    finally:
        server.stop()


def test_clients_with_numbers_are_spread(opened: Sessions, servers: list[Server]) -> None:
    found = [
        names(read(opened(*servers, order="spread", client_number=number))) for number in range(3)
    ]
    assert found == ["a", "b", "c"]


def test_nearest_order_uses_the_server_with_the_shortest_round_trip(
    opened: Sessions, servers: list[Server]
) -> None:
    servers[0].health_delay_s, servers[2].health_delay_s = 0.8, 0.4
    session = opened(*servers, order="nearest", refresh_s=0.01, **QUICK_BACK)
    assert names(read(session)) == "a"  # nothing is measured yet
    until(lambda: channel(session).view.memory.preferred == (1, 2, 0))
    until(lambda: names(read(session)) == "b")


def test_stopped_session_leaves_no_thread_and_no_link(servers: list[Server]) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "haclient"}
    session = haclient.spark(f"sc://{servers[0].address}", **PATIENT)
    read(session)
    links = channel(session).links
    session.stop()
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    assert servers[0].calls("ReleaseSession")
    until(lambda: not {t for t in threading.enumerate() if t.name == "haclient"} - before)
    assert not links.busy
    assert not links._current


@pytest.mark.parametrize("options", [{"order": "x"}, {"nope": 1}, {"ca_file": "/no/such"}])
def test_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(haclient.InterfaceError):
        haclient.spark("sc://a", **options)


def test_haclient_spark_without_pyspark_reports_the_package_to_install() -> None:
    program = """
import sys
sys.modules.update({"grpc": None, "pyspark": None, "google": None})
import haclient
try:
    haclient.spark("sc://a")
except haclient.InterfaceError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert "haproc[pyspark]" in done.stdout
