"""A small real HTTP server that answers as a HAProc does, and misbehaves on demand.

It runs its own event loop in a thread, so that blocking and asyncio clients use the same one. Its
next reactions are scripted: each statement takes the next behaviour, or the usual one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from aiohttp import web

Behaviour = Callable[["Server", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
ARROW = "application/vnd.apache.arrow.stream"
WAIT_S = 20.0


def arrow(table: pa.Table, rows_per_batch: int | None = None) -> bytes:
    """Return the table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue().to_pybytes())


class Server:
    """One such server; ``seen`` holds the JSON of every statement that it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[dict[str, Any]] = []
        self.appended: list[tuple[str, dict[str, str], pa.Table]] = []
        self.bodies: list[tuple[str, dict[str, str], bytes]] = []
        """Rows that came in other forms: their type, the request, and the rows."""
        self.written: dict[str, dict[str, Any]] = {}
        """The ``ha`` blocks of known writes, by id."""
        self.rejected: dict[str, dict[str, Any]] = {}
        """Errors of writes, by request id, as arguments of `error`."""
        self.final = True
        """These are final on every cluster."""
        self.met = {"default", "one", "majority", "all"}
        """The write concerns that its writes have met."""
        self.cancelled: list[str] = []
        self.unknown = 0
        """The number of cancels that come before their statement is known."""
        self.headers: list[dict[str, str]] = []
        self.sessions: dict[str, list[str]] = {}
        self.script: deque[Behaviour] = deque()
        self.rows_script: deque[Behaviour] = deque()
        """The same for rows."""
        self.ready = True
        self.token = ""
        """The token that every request must have, if any."""
        self.ring: list[Server] = []
        """The ring's servers, as this one reports them; if empty, it reports none."""
        self.reported_url = ""
        """The URL that it reports for itself; if empty, its real one."""
        self.state = "READY"
        self.probe_delay_s = 0.0
        self.status_requests = 0
        """The number of requests for the ring's status."""
        self.port = 0
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._thaw = threading.Event()
        self._closing = False
        """A freeze that comes so late, on a busy machine, would stop the close."""
        self._runner: web.AppRunner | None = None
        self.waiting: asyncio.Event
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WAIT_S)

    async def _start(self) -> None:
        self.waiting = asyncio.Event()
        app = web.Application(client_max_size=1 << 26, middlewares=[self._access])
        app.on_response_prepare.append(self._add_state)
        app.router.add_get("/clusterStatus", self._status)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_post("/api/2.0/sql/statements", self._statement)
        app.router.add_get("/api/2.0/sql/statements/{id}", self._statement_status)
        app.router.add_post("/api/2.0/sql/statements/{id}/cancel", self._cancel)
        app.router.add_put("/api/ha/sessions/{id}", self._open_session)
        app.router.add_delete("/api/ha/sessions/{id}", self._close_session)
        app.router.add_post("/api/ha/tables/{table}/rows", self._rows)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        await web.SockSite(self._runner, self._listener).start()

    def stop(self) -> None:
        """Close the door and every connection, as the kernel does for a killed process."""
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(WAIT_S)

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        assert runner is not None
        # asyncio leaks a connection that it has accepted while its listener is being closed.
        self._loop.remove_reader(self._listener.fileno())
        await asyncio.sleep(0.01)
        for connection in list(runner.server.connections if runner.server else ()):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()
        await asyncio.sleep(0)

    def freeze(self) -> None:
        """Stop the whole loop: the kernel still accepts connections, nobody answers."""
        self._thaw.clear()
        self._loop.call_soon_threadsafe(lambda: self._closing or self._thaw.wait(WAIT_S))

    def thaw(self) -> None:
        self._thaw.set()

    def close(self) -> None:
        self._closing = True
        self.thaw()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def drain(self) -> None:
        """Accept nothing new; running requests are completed."""
        self.state, self.ready = "DRAINING", False

    @web.middleware
    async def _access(self, request: web.Request, handler: Any) -> Any:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.error(401, "refused", "HAPROC_UNAUTHENTICATED")
        return await handler(request)

    async def _add_state(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.state != "READY":
            response.headers["HAProc-State"] = self.state

    async def _status(self, request: web.Request) -> web.Response:
        self.status_requests += 1
        await asyncio.sleep(self.probe_delay_s)
        if not self.ring:
            return web.json_response({}, status=404)
        clusters = [
            {
                "name": each.name,
                "url": each.reported_url or each.url,
                "state": each.state,
                "lag": 2,
                "in_sync": True,
                "since": "2026-01-02T03:04:05.000Z",
            }
            for each in self.ring
        ]
        own = {"ring": "ring", "cluster": self.name, "state": self.state}
        return web.json_response({**own, "clusters": clusters})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        return web.json_response({"state": "READY"}, status=200 if self.ready else 503)

    async def _statement(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        if self.state == "DRAINING":
            return self.error(503, "availability", "HAPROC_DRAINING")
        if self.script:
            return await self.script.popleft()(self, request, body)
        text, session = body["statement"], body.get("session_id")
        if session is not None and session not in self.sessions:
            return self.error(404, "application", "HAPROC_SESSION_UNKNOWN")
        if text.startswith("USE"):
            if session is None:
                return self.error(400, "refused", "HAPROC_SESSION_REQUIRED")
            self.sessions[session].append(text)
            return self.answer(None, {"class": "session"})
        if "WRONG" in text:
            return self.error(422, "application", "TABLE_OR_VIEW_NOT_FOUND", "42P01")
        if text.startswith("INSERT"):
            rows = len(body.get("parameter_rows") or [1])
            return self.answer(None, {"class": "asynchronous", "affected_rows": rows})
        return self.answer(pa.table({"n": pa.array([1], pa.int32())}))

    async def _statement_status(self, request: web.Request) -> web.Response:
        if (error := self.rejected.get(request.match_info["id"])) is not None:
            failed = {"state": "FAILED", "error": error}
            return web.json_response({"status": failed, "ha": {"final": self.final}})
        ha = self.written.get(request.match_info["id"])
        if ha is None:
            return self.error(404, "refused", "HAPROC_STATEMENT_UNKNOWN")
        if (concern := request.query.get("concern")) is not None:
            ha = {**ha, "concern_met": concern in self.met}
        return web.json_response({"status": {"state": "SUCCEEDED"}, "ha": ha})

    async def _cancel(self, request: web.Request) -> web.Response:
        if self.unknown:
            self.unknown -= 1
            return web.json_response({}, status=404)
        self.cancelled.append(request.match_info["id"])
        self.waiting.set()
        return web.json_response({})

    async def _open_session(self, request: web.Request) -> web.Response:
        begins = list((await request.json())["begin_with"])
        self.sessions.setdefault(request.match_info["id"], begins)
        return web.json_response({"cluster": self.name})

    async def _close_session(self, request: web.Request) -> web.Response:
        self.sessions.pop(request.match_info["id"], None)
        return web.json_response({})

    async def _rows(self, request: web.Request) -> Any:
        if self.rows_script:
            return await self.rows_script.popleft()(self, request, {})
        body, query = await request.read(), dict(request.query)
        if request.content_type == ARROW:
            table = pa.ipc.open_stream(body).read_all()
            self.appended.append((request.match_info["table"], query, table))
            rows = table.num_rows
        else:
            self.bodies.append((request.content_type, query, body))
            rows = body.count(b"\n")
        report = {"cluster": self.name, "class": "asynchronous", "affected_rows": rows}
        self.written[query.get("request_id", "")] = report
        return web.json_response({"statement_id": "x", "ha": report})

    def report(self, ha: dict[str, Any] | None = None) -> str:
        return json.dumps({"cluster": self.name, "class": "query", **(ha or {})})

    def answer(self, table: pa.Table | None, ha: dict[str, Any] | None = None) -> web.Response:
        body = arrow(pa.table({}) if table is None else table)
        headers = {"HAProc-Report": self.report(ha), "Content-Type": ARROW}
        return web.Response(body=body, headers=headers)

    def error(
        self, status: int, kind: str, error_class: str, sqlstate: str = "", **more: Any
    ) -> web.Response:
        outcome = {"application": "REJECTED"}.get(kind, "NOT_SENT")
        fields = {"message": f"said by {self.name}", "kind": kind, "error_class": error_class}
        fields |= {"sqlstate": sqlstate, "outcome": outcome, "cluster": self.name, **more}
        return web.json_response(fields, status=status)


def _at_once(make: Callable[[Server], web.Response]) -> Behaviour:
    async def behave(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
        return make(server)

    return behave


def answering(table: pa.Table | None, ha: dict[str, Any] | None = None) -> Behaviour:
    """Answer with this table."""
    return _at_once(lambda server: server.answer(table, ha))


def failing(status: int, kind: str, error_class: str, sqlstate: str = "", **more: Any) -> Behaviour:
    """Answer with this error."""
    return _at_once(lambda server: server.error(status, kind, error_class, sqlstate, **more))


def busy(for_s: float) -> Behaviour:
    """Answer that the server is busy, for this time."""

    def answer(server: Server) -> web.Response:
        answer = server.error(429, "availability", "HAPROC_BUSY")
        answer.headers["Retry-After"] = f"{for_s:g}"
        return answer

    return _at_once(answer)


async def reset(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
    """Break the connection before any answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0)
    return web.Response()


async def until_cancelled(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
    """Answer only once the statement has been cancelled."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.waiting.wait(), WAIT_S)
    return server.error(400, "refused", "HAPROC_CANCELED")


async def finishing_while_draining(
    server: Server, request: web.Request, body: Any
) -> web.StreamResponse:
    """Begin to drain during the statement, and answer it."""
    server.drain()
    return server.answer(pa.table({"n": pa.array([1], pa.int32())}))


def slow(seconds: float) -> Behaviour:
    """Answer after this long."""

    async def behave(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return server.answer(pa.table({"n": pa.array([1], pa.int32())}))

    return behave


def freezing(server: Server, request: web.Request, body: Any) -> Awaitable[web.StreamResponse]:
    """Freeze the whole server during the statement."""
    server.freeze()
    return slow(0.01)(server, request, body)


def breaking_off(table: pa.Table, rows_per_batch: int, share: float) -> Behaviour:
    """Send this share of the answer's bytes, then break the connection."""

    async def behave(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"HAProc-Report": server.report(), "Content-Type": ARROW}
        )
        response.enable_chunked_encoding()
        await response.prepare(request)
        data = arrow(table, rows_per_batch)
        await response.write(data[: int(len(data) * share)])
        await asyncio.sleep(0.05)  # let it reach the client before the reset overtakes it
        assert request.transport is not None
        request.transport.abort()
        return response

    return behave


def chunked(table: pa.Table, rows_per_batch: int) -> Behaviour:
    """Answer in chunks, like a stream of a HAProc."""

    async def behave(server: Server, request: web.Request, body: Any) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"HAProc-Report": server.report(), "Content-Type": ARROW}
        )
        response.enable_chunked_encoding()
        await response.prepare(request)
        data = arrow(table, rows_per_batch)
        for start in range(0, len(data), 1000):
            await response.write(data[start : start + 1000])
        await response.write_eof()
        return response

    return behave
