"""Tests of the kill harness's clients: their notes of reads, with level, tokens and server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

import haclient
from tests.fault.torture.history import History, Level, Outcome, load
from tests.fault.torture.workloads import (
    LEVELS,
    BoundedReader,
    Client,
    FreshReader,
    SessionClient,
    make_clients,
)
from tests.unit.haclient_rig import servers
from tests.unit.haclient_server import Server, answering, failing

__all__ = ["servers"]

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "v": pa.array([11, 12], pa.int64())})
UNAVAILABLE = failing(503, "availability", "HAPROC_DOWN", outcome="NOT_SENT")


class Registers(Client):
    """Reads and writes the register table on the test's command."""

    def step(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def working(kind: type[Client], servers: list[Server], file: Path) -> Iterator[Client]:
    """Yield a client that prefers the first server; close its history in the end."""
    with contextlib.closing(History(file)) as history:
        names = {server.url: server.name for server in servers}
        client = kind("x-1", 1, names, 1, history)
        with haclient.connect([*names], discover=False) as client._connection:
            yield client


async def tables(server: Server, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer a query of any of the tables, and every write."""
    text = body["statement"]
    if not text.startswith("SELECT"):
        return server.answer(None, {"class": "asynchronous", "log_offset": 3})
    return server.answer(ROWS if "reg_0" in text else pa.table({"k": [1], "l": ["5,6"]}))


def test_read_answered_by_another_server_is_noted_as_a_failover(
    servers: list[Server], tmp_path: Path
) -> None:
    servers[0].script += [answering(ROWS, {"after_offset": 7}), UNAVAILABLE]
    servers[1].script += [answering(ROWS, {"after_offset": 9}), answering(ROWS)]
    with working(Registers, servers, tmp_path / "h") as client:
        client.read("reg_0")
        client.read("reg_0", Level.BOUNDED, 4)
        client.read("reg_0", Level.SESSION)
    first, second, third = load(tmp_path / "h").reads
    assert first.content == {"1": (11,), "2": (12,)}
    assert (first.level, first.token, first.after_offset) == (Level.ANY, 0, 7)
    assert (first.sent_to, first.answered_by, first.failed_over) == ("a", "a", False)
    assert (second.level, second.lag_max, second.token) == (Level.BOUNDED, 4, 7)
    assert (second.sent_to, second.answered_by, second.failed_over) == ("a", "b", True)
    assert (third.sent_to, third.token, third.failed_over) == ("b", 9, False)
    assert servers[1].seen[0]["consistency"] == "bounded"
    assert servers[1].seen[0]["acceptable_offset_lag"] == 4


def test_read_that_fails_is_noted_with_its_level(servers: list[Server], tmp_path: Path) -> None:
    servers[0].script.append(failing(400, "refused", "HAPROC_BAD_REQUEST"))
    with working(Registers, servers, tmp_path / "h") as client:
        client.read("reg_0", Level.LINEARIZABLE)
    (event,) = load(tmp_path / "h").events
    assert (event["type"], event["level"], event["sent_to"]) == ("read-failed", "linearizable", "a")


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        (FreshReader, {"linearizable"}),
        (BoundedReader, {"bounded"}),
        (SessionClient, {"session", "any"}),
    ],
)
def test_client_of_a_level_reads_at_that_level(
    kind: type[Client], levels: set[str], servers: list[Server], tmp_path: Path
) -> None:
    servers[0].script.extend([tables] * 90)
    with working(kind, servers, tmp_path / "h") as client:
        for _ in range(40):
            client.step()
    run = load(tmp_path / "h")
    assert {body["consistency"] for body in servers[0].seen if "consistency" in body} == levels
    assert {op.outcome for op in run.ops} <= {Outcome.ACK}
    assert bool(run.ops) is (kind is SessionClient)
    assert all(op.sent_to == op.answered_by == "a" for op in run.ops)


def test_make_clients_uses_only_the_chosen_levels(tmp_path: Path) -> None:
    def names(levels: tuple[Level, ...]) -> list[str]:
        history = History(tmp_path / "h")
        clients = make_clients("http://{}".format, ["a", "b", "c"], 1, history, levels)
        history.close()
        return [client.name for client in clients][-4:]

    assert names(LEVELS) == ["linearizable-1", "session-2", "bounded-3", "linearizable-4"]
    assert {name.partition("-")[0] for name in names((Level.SESSION,))} == {"session"}
