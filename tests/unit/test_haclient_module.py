"""The client's module as a whole: PEP 249, threads, cancelling, the generated twin."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import haclient
import haclient.aio
from tests.unit.haclient_rig import servers, until
from tests.unit.haclient_server import WAIT_S, Server, slow, until_cancelled

__all__ = ["servers"]


def test_cancel_from_another_thread_ends_execute(servers: list[Server]) -> None:
    servers[0].script.append(until_cancelled)
    with haclient.connect([s.url for s in servers]) as connection, connection.cursor() as cursor:

        def cancel() -> None:
            deadline = time.monotonic() + WAIT_S
            while not servers[0].seen and time.monotonic() < deadline:
                time.sleep(0.005)
            cursor.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(haclient.OperationalError) as raised:
            cursor.execute("SELECT 1")
        thread.join(WAIT_S)
    assert raised.value.error_class == "HAPROC_CANCELED"
    assert servers[0].cancelled == [servers[0].seen[0]["request_id"]]
    assert not servers[1].seen


@pytest.mark.parametrize("overtaken", [0, 2])
async def test_cancel_from_another_task_ends_execute(servers: list[Server], overtaken: int) -> None:
    """Also a cancel that arrives at a server before the statement does."""
    servers[0].script.append(until_cancelled)
    servers[0].unknown = overtaken
    async with haclient.aio.connect([s.url for s in servers]) as connection:
        cursor = connection.cursor()
        running = asyncio.create_task(cursor.execute("SELECT 1"))
        await until(lambda: bool(servers[0].seen))
        await cursor.cancel()
        with pytest.raises(haclient.OperationalError):
            await running
    assert servers[0].cancelled == [servers[0].seen[0]["request_id"]]
    assert not servers[1].seen


async def test_cancel_goes_to_another_server_if_the_one_that_ran_the_statement_is_gone(
    servers: list[Server],
) -> None:
    async with haclient.aio.connect([s.url for s in servers]) as connection:
        cursor = connection.cursor()
        await cursor.execute("SELECT 1")
        servers[0].stop()
        await cursor.cancel()
        servers[1].stop()
        with pytest.raises(haclient.OperationalError, match="cannot receive it"):
            await cursor.cancel()
    assert servers[1].cancelled == [servers[0].seen[0]["request_id"]]


async def test_task_cancelled_during_execute_leaves_the_connection_usable(
    servers: list[Server],
) -> None:
    servers[0].script.append(slow(5.0))
    async with haclient.aio.connect([s.url for s in servers]) as connection:
        running = asyncio.create_task(connection.execute("SELECT 1"))
        await until(lambda: bool(servers[0].seen))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await (await connection.execute("SELECT 1")).fetchall() == [(1,)]


def test_threads_sharing_a_connection_get_their_own_answers(servers: list[Server]) -> None:
    wrong: list[object] = []
    with haclient.connect([s.url for s in servers], outage_s=20.0) as connection:

        def work(number: int) -> None:
            for step in range(25):
                cursor = connection.execute("SELECT ?", [number], request_id=f"{number}-{step}")
                if cursor.fetchall() != [(1,)] or cursor.request_id != f"{number}-{step}":
                    wrong.append((number, step))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        servers[0].stop()  # in the middle of it
        for thread in threads:
            thread.join(WAIT_S)
    assert not wrong
    answered_ids = {body["request_id"] for server in servers for body in server.seen}
    assert len(answered_ids) == 200


def test_unreachable_server_is_skipped(
    servers: list[Server],
) -> None:
    # A listener whose backlog is full does not take connections: packets are dropped.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        try:
            with haclient.connect([url, servers[1].url], connect_timeout_s=0.1) as connection:
                assert connection.execute("SELECT 1").ha["cluster"] == "b"
        finally:
            for filler in fillers:
                filler.close()


def test_module_follows_pep_249() -> None:
    assert (haclient.apilevel, haclient.threadsafety, haclient.paramstyle) == ("2.0", 2, "qmark")
    tree = {
        haclient.Error: Exception,
        haclient.Warning: Exception,
        haclient.InterfaceError: haclient.Error,
        haclient.DatabaseError: haclient.Error,
        haclient.DataError: haclient.DatabaseError,
        haclient.OperationalError: haclient.DatabaseError,
        haclient.IntegrityError: haclient.DatabaseError,
        haclient.InternalError: haclient.DatabaseError,
        haclient.ProgrammingError: haclient.DatabaseError,
        haclient.NotSupportedError: haclient.DatabaseError,
    }
    for error, base in tree.items():
        assert error.__base__ is base
        assert getattr(haclient.Connection, error.__name__) is error
    for name in ["close", "commit", "rollback", "cursor"]:
        assert callable(getattr(haclient.Connection, name))
    fetching = ["fetchone", "fetchmany", "fetchall"]
    for name in [
        "close",
        "execute",
        "executemany",
        *fetching,
        "setinputsizes",
        "setoutputsize",
        "nextset",
    ]:
        assert callable(getattr(haclient.Cursor, name))
    assert haclient.Binary(b"x") == b"x"
    assert haclient.TimestampFromTicks(0).date() == haclient.DateFromTicks(0)
    assert haclient.TimeFromTicks(0) == haclient.TimestampFromTicks(0).time()


def test_unknown_option_of_connect_is_refused() -> None:
    with pytest.raises(haclient.InterfaceError, match="timeout"):
        haclient.connect("http://a", timeout=5)


def test_blocking_client_is_up_to_date_with_its_generator() -> None:
    script = Path(__file__).parents[2] / "scripts" / "async_to_sync.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_client_imports_neither_server_nor_spark() -> None:
    code = "import sys, haclient, haclient.aio, haclient.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"haproc", "dmq", "pyspark", "grpc", "pandas", "prompt_toolkit", "rich"}
