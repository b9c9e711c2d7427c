"""The status page's door: its files, and the events for all viewers.

The files are the same for everybody and contain nothing about the ring: a browser can only fetch a
page without a token. The stream has the door's own rules. On the operator door it is open, like
``/clusterStatus``; with an operator's token it also shows tables, users and the queue. On the
client door it needs what every request there needs, and shows the same to everybody.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.classify.rights import Role
from haproc.doors.http.access import ADMITTED
from haproc.doors.roles import EVENTS, FILE, PAGE
from haproc.failure import ErrorClass, busy, refused

# One computation for all viewers: a snapshot a second, and one at once when a state changes.
#
# Nothing is computed without viewers. A viewer that reads its events too slowly gets the newest one
# next, and never an old one: nothing queues up for it.


logger = logging.getLogger(__name__)

VIEWERS_MAX: Final = 64
"""Viewers without operators. Chosen: more than watch one HAProc; each costs a socket's buffer."""
INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.1
"""The shortest time between events, however often states change."""


class Source(Protocol):
    """The data of the status page."""

    def history(self) -> Mapping[str, Json]:
        """Return the earlier data, for a new viewer."""
        ...

    async def snapshot(self) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
        """Return the public data, and the data that operators see in addition or instead."""
        ...


class Viewer:
    """One viewer; ``operator``: True if it may see everything, None at a door without operators."""

    def __init__(self, *, operator: bool | None) -> None:
        self.operator = operator
        self._newest: bytes | None = None
        self._ended = False
        self._news = asyncio.Event()

    def give(self, event: bytes) -> None:
        """Set the next event; it replaces one that was not read."""
        self._newest = event
        self._news.set()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._news.set()

    async def next_event(self) -> bytes | None:
        """Wait for the next event; None if there are no more."""
        await self._news.wait()
        self._news.clear()
        event, self._newest = self._newest, None
        return None if self._ended else event


class Broadcaster:
    """Computes events while there are viewers, and gives them to all of them."""

    def __init__(self, source: Source, *, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._interval_s = interval_s
        self._viewers: dict[Viewer, None] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @contextmanager
    def watching(self, *, operator: bool | None) -> Iterator[Viewer]:
        """Add a viewer for a while; raises RequestError if there are too many.

        Operators always get a place: their token identifies them.
        """
        if not operator and sum(not each.operator for each in self._viewers) >= VIEWERS_MAX:
            raise busy(f"{VIEWERS_MAX} viewers watch this HAProc already")
        viewer = Viewer(operator=operator)
        if self._closed:
            viewer.end()
        self._viewers[viewer] = None
        self._changed.set()
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._send_snapshots())
        try:
            yield viewer
        finally:
            del self._viewers[viewer]

    def history(self) -> bytes:
        """Return the first event of a stream."""
        return event_of("history", self._source.history())

    def changed(self) -> None:
        """Note that a state changed, to be sent at once."""
        self._changed.set()

    async def _send_snapshots(self) -> None:
        try:
            while self._viewers:
                self._changed.clear()
                public, more = await self._source.snapshot()
                by_role = dict[bool | None, bytes]()
                for viewer in self._viewers:
                    operator = viewer.operator
                    if operator not in by_role:
                        shown = {**public, **(more if operator else {}), "operator": operator}
                        by_role[operator] = event_of("snapshot", shown)
                    viewer.give(by_role[operator])
                await asyncio.sleep(PAUSE_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._interval_s - PAUSE_S)
        except Exception:
            logger.exception("the status page cannot be brought up to date")
        finally:
            self._task = None
            for viewer in self._viewers:
                viewer.end()

    async def aclose(self) -> None:
        """End all streams."""
        self._closed = True
        for viewer in self._viewers:
            viewer.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def event_of(name: str, body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event. JSON has no line ends of its own."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")


# The status page's door: three files and a stream of server-sent events.


WATCH_S: Final = 60.0
"""A stream ends after this time: the page's next stream checks the token again."""
_TYPES: Final = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
HEADERS: Final = {
    # No inline script or style, nothing from other hosts, no frame around it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # requested each time, but sent only if changed
}


def show(app: web.Application, broadcaster: Broadcaster, *, operators: bool = False) -> None:
    """Add the page to an application; ``operators``: True if an operator's token shows more."""
    folder = Path(__file__).parent
    files = {name: (folder / name).read_bytes() for name in _TYPES}

    def answer(request: web.Request, name: str) -> web.Response:
        if name not in files:
            raise refused(ErrorClass.NOT_FOUND, "the status page has no such file", "see /ui")
        tag = hashlib.sha256(files[name]).hexdigest()[:32]
        headers = {**HEADERS, "ETag": f'"{tag}"'}
        if any(each.value in (tag, "*") for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        kind = f"{_TYPES[name]}; charset=utf-8"
        return web.Response(body=files[name], headers={**headers, "Content-Type": kind})

    async def page(request: web.Request) -> web.Response:
        return answer(request, "page.html")

    async def file(request: web.Request) -> web.Response:
        return answer(request, request.match_info["file"])

    async def events(request: web.Request) -> web.StreamResponse:
        operator = request[ADMITTED].rights.has(Role.OPERATOR) if operators else None
        with broadcaster.watching(operator=operator) as viewer:
            stream = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
            response = web.StreamResponse(headers={**HEADERS, **stream})
            await response.prepare(request)
            await response.write(broadcaster.history())
            until_s = asyncio.get_running_loop().time() + WATCH_S
            while (event := await viewer.next_event()) is not None:
                await response.write(event)
                if asyncio.get_running_loop().time() > until_s:
                    await response.write(event_of("again", {}))
                    break
        await response.write_eof()
        return response

    async def close(_: web.Application) -> None:
        await broadcaster.aclose()

    app.on_shutdown.append(close)
    app.add_routes(
        [
            web.get(PAGE, page, allow_head=False),
            web.get(EVENTS, events, allow_head=False),
            web.get(FILE, file, allow_head=False),
        ]
    )
