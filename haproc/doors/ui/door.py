"""The routes of the status page: its files, and the stream of events for all its viewers.

The files are the same for everybody and contain nothing about the ring: a browser can only fetch a
page without a token. The rules for the stream of events depend on the door. On the operator door
the stream is open, like ``/clusterStatus``; with an operator's token it also shows tables, users
and the queue. On the client door the stream needs a token, and shows the same to everybody.
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
"""The most viewers, operators not counted. Chosen: more than watch one HAProc; each costs the
buffer of a socket."""
INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.1
"""The least time between two events, however often states change."""


class Source(Protocol):
    """Gives the data of the status page."""

    def history(self) -> Mapping[str, Json]:
        """Return what happened before, for a viewer that has just come."""
        ...

    async def snapshot(self) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
        """Return everybody's data, and the fields that operators get in addition or instead."""
        ...


class Viewer:
    """One viewer of the status page.

    ``operator``: True if it may see everything; None at a door where nobody has this right.
    """

    def __init__(self, *, operator: bool | None) -> None:
        self.operator = operator
        self._newest: bytes | None = None
        self._ended = False
        self._news = asyncio.Event()

    def give(self, event: bytes) -> None:
        """Set the viewer's next event; it replaces an event that was not sent yet."""
        self._newest = event
        self._news.set()

    def end(self) -> None:
        """End the viewer's stream."""
        self._ended = True
        self._news.set()

    async def next_event(self) -> bytes | None:
        """Wait for the viewer's next event; return None if the stream has ended."""
        await self._news.wait()
        self._news.clear()
        event, self._newest = self._newest, None
        return None if self._ended else event


class Broadcaster:
    """Makes events as long as there are viewers, and gives each event to all viewers."""

    def __init__(self, source: Source, *, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._interval_s = interval_s
        self._viewers: dict[Viewer, None] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @contextmanager
    def watching(self, *, operator: bool | None) -> Iterator[Viewer]:
        """Add a viewer as long as the context lasts; RequestError if there are too many.

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
        """Return the first event of a viewer's stream: what happened before."""
        return event_of("history", self._source.history())

    def changed(self) -> None:
        """Note that a state has changed, so that the next event is sent at once."""
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
        """End the streams of all viewers."""
        self._closed = True
        for viewer in self._viewers:
            viewer.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def event_of(name: str, body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event as bytes. (JSON as it is written here has no line ends.)"""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")


# The status page's door: three files and a stream of server-sent events.


WATCH_S: Final = 60.0
"""A stream ends after this time; the page opens the next one, and the token is checked again."""
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
    """Add the status page to an application.

    ``operators``: True if it shows more to a viewer with an operator's token.
    """
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
