"""The status page's door: three files and a stream of server-sent events.

The files are the same for everybody and say nothing of the ring: a browser can fetch a page without
a token only. The stream is under the door's own rules. On the operator door it is open, like
``/clusterStatus``; an operator's token shows tables, users and the queue as well. On the
client door it needs what every request there needs, and nobody sees more.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

from haproc.classify.rights import Role
from haproc.doors.http.access import ADMITTED
from haproc.doors.roles import EVENTS, FILE, PAGE
from haproc.doors.ui.broadcast import Broadcaster, event_of
from haproc.failure import ErrorClass, refused

WATCH_S: Final = 60.0
"""A stream ends after so long: the token is looked at again as the page begins the next one."""
_TYPES: Final = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
HEADERS: Final = {
    # No inline script or style, nothing from elsewhere, no frame around it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, and sent only if it is another one
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
