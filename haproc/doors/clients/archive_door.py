"""The doors for the archive's user only: the operations to archive, and verifications."""

from __future__ import annotations

from typing import Final, Protocol

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import reading
from haproc.doors.http.access import USER
from haproc.doors.http.bodies import ARROW_STREAM, HELD, json_response, read_object
from haproc.doors.operators.queue import OperatorService
from haproc.failure import ErrorClass, refused
from haproc.replicate.archive.pages import BYTES_MAX, ROWS_MAX, Page

# The door for the archive: the operations that every cluster has applied, in Arrow, for one user.
#
# ``from`` is an offset, ``rows`` the largest number. The answer's headers contain the range that it
# covers, and the end of the archive. The reader reports its progress with a request of its own:
# reading alone changes nothing.


START: Final = "HAProc-Operations-Start"
END: Final = "HAProc-Operations-End"
APPLIED_TO: Final = "HAProc-Applied-To"
OPERATIONS_PATH: Final = "/api/ha/operations"


class ArchiveService(Protocol):
    """What the archive needs of the log; methods raise RequestError."""

    async def page(self, start: int, rows_max: int) -> Page:
        """Return a page of at most ``rows_max`` operations from the offset ``start`` on.

        It has only operations that every cluster has applied.
        """
        ...

    async def archived(self, below: int) -> None:
        """Note that all operations below the offset ``below`` are in the archive."""
        ...


def keep(app: web.Application, config: Config, service: ArchiveService) -> None:
    """Add the routes by which the archive reads operations to the client door's application."""

    async def operations(request: web.Request) -> web.Response:
        check_user(config, request)
        reading.no_unknown(request.query, ("from", "rows"))
        start = reading.whole_number(request.query.get("from", "0"), "from")
        rows = reading.whole_number(request.query.get("rows", str(ROWS_MAX)), "rows")
        if not 1 <= rows <= ROWS_MAX:
            raise refused(ErrorClass.BAD_REQUEST, f"rows must be 1 to {ROWS_MAX}")
        request[HELD].reserve_bytes(2 * BYTES_MAX)
        page = await service.page(start, rows)
        headers = {
            START: str(page.start),
            END: str(page.end),
            APPLIED_TO: str(page.applied_to),
        }
        return web.Response(body=page.rows, content_type=ARROW_STREAM, headers=headers)

    async def archived(request: web.Request) -> web.Response:
        check_user(config, request)
        below = reading.offset(await read_object(request, ("below",)), "below")
        if below is None:
            raise refused(ErrorClass.BAD_REQUEST, "below is needed: an offset")
        await service.archived(below)
        return json_response({"below": below})

    app.add_routes(
        [
            web.get(OPERATIONS_PATH, operations, allow_head=False),
            web.post(f"{OPERATIONS_PATH}/archived", archived),
        ]
    )


def check_user(config: Config, request: web.Request) -> None:
    """Raise RequestError for every user except the archive's."""
    if config.archive.user is None or request[USER] != config.archive.user:
        raise refused(
            ErrorClass.FORBIDDEN,
            "only the user that archive.user of the ring's configuration names may ask this",
            "set archive.user, or use that user's token",
        )


# The door for verifications on a schedule, for the archive's user: they name all users' tables.
#
# It does the same as the operators' door, which needs the role operator.


VERIFY_PATH: Final = "/api/ha/verify"


def attest(app: web.Application, config: Config, service: OperatorService) -> None:
    """Add to the client door's application the routes for the archive's user to verify tables."""

    async def verify(request: web.Request) -> web.Response:
        check_user(config, request)
        return json_response(await service.verify())

    async def verification(request: web.Request) -> web.Response:
        check_user(config, request)
        marker = reading.whole_number(request.match_info["offset"], "an offset")
        return json_response(await service.verification(marker))

    app.add_routes(
        [
            web.post(VERIFY_PATH, verify),
            web.get(f"{VERIFY_PATH}/{{offset}}", verification, allow_head=False),
        ]
    )
