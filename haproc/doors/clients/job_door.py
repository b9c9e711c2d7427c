"""The doors for jobs: in Livy's form for users with their own jobs; for operators with all jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from haproc.config.jobs import UnknownFields
from haproc.config.model import Config
from haproc.doors.http import reading
from haproc.doors.http.access import ADMITTED, USER
from haproc.doors.http.bodies import (
    HELD,
    check_json,
    check_plain,
    in_time,
    json_response,
    read_body,
)
from haproc.failure import ErrorClass, RequestError, refused
from haproc.jobs.model import FileRole
from haproc.jobs.request import FIELDS, Upload, too_large
from haproc.jobs.service import PAGE_DEFAULT, PAGE_MAX, JobService

BATCHES: Final = "/batches"
SESSIONS: Final = "/sessions"
"""The path of Livy's interactive sessions, which HAProc does not have."""
BODY_BYTES_MAX: Final = 4 << 20
"""The most bytes of a request without its files; inline code counts."""
PARTS_MAX: Final = 1000
_ROLES: Final = {"file": FileRole.PROGRAM, "pyFiles": FileRole.MODULE, "files": FileRole.DATA}
REQUEST_PART: Final = "request"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"


class ListedJobs:
    """The handlers that show and stop jobs.

    - ``owner`` returns the user whose jobs a request may see and stop; None: all users' jobs;
    - ``off_hint``: the hint in the error if jobs are switched off in this ring.
    """

    def __init__(
        self,
        path: str,
        service: JobService | None,
        owner: Callable[[web.Request], str | None],
        off_hint: str,
    ) -> None:
        self._path = path
        self._service = service
        self._owner = owner
        self._off_hint = off_hint

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        one = self._path + "/{batch_id}"
        return [
            web.get(self._path, self.listed, allow_head=False),
            web.get(one, self.shown, allow_head=False),
            web.get(one + "/log", self.log, allow_head=False),
            web.delete(one, self.kill),
        ]

    @property
    def _jobs(self) -> JobService:
        if self._service is None:
            raise refused(ErrorClass.JOBS_OFF, "this ring takes no jobs", self._off_hint)
        return self._service

    async def listed(self, request: web.Request) -> web.Response:
        """Return a page of the list of jobs."""
        jobs, (start, size) = self._jobs, page_of(request)
        return json_response(await jobs.listed(self._owner(request), start or 0, size))

    async def shown(self, request: web.Request) -> web.Response:
        """Return what is known of one job."""
        return json_response(await self._jobs.shown(self._owner(request), batch_id(request)))

    async def log(self, request: web.Request) -> web.Response:
        """Return lines of the text that a job has written (its log)."""
        jobs, (start, size) = self._jobs, page_of(request)
        return json_response(await jobs.log(self._owner(request), batch_id(request), start, size))

    async def kill(self, request: web.Request) -> web.Response:
        """Stop a job."""
        await self._jobs.kill(self._owner(request), batch_id(request))
        return json_response({"msg": "deleted"})


class JobDoor(ListedJobs):
    """The handlers of a user's own jobs."""

    def __init__(self, config: Config, service: JobService | None) -> None:
        hint = "set jobs.enabled at each HAProc"
        super().__init__(BATCHES, service, lambda request: request[USER], hint)
        self._files_bytes_max = config.jobs.files_bytes_max
        self._refuses = config.jobs.unknown_fields is UnknownFields.REFUSE

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        state = BATCHES + "/{batch_id}/state"
        return [
            *super().routes(),
            web.post(BATCHES, self.submit),
            web.get(state, self.state, allow_head=False),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        """Submit a job: a program that the ring runs for the user."""
        jobs = self._jobs
        uploads: list[Upload] = []
        if request.content_type == "multipart/form-data":
            check_plain(request)
            async with in_time():
                body, uploads = await self._parts(request)
        else:
            check_json(request)
            body = reading.parse_object(await read_body(request, BODY_BYTES_MAX))
        if self._refuses:
            reading.no_unknown(body, FIELDS)
        key = request.headers.get(IDEMPOTENCY_KEY)
        if key is not None:
            reading.check_identifier(key, IDEMPOTENCY_KEY)
        by = request[ADMITTED]
        if by.issued and by.authorization is not None:
            # Otherwise its rights would outlive the provider's grant for ever, from job to job.
            raise refused(
                ErrorClass.FORBIDDEN,
                "a job of a provider's user submits no jobs",
                "submit it with a token of the provider, or have a user of the configuration do so",
            )
        rights = by.rights if by.issued else None
        made = await jobs.submit(by.user, body, uploads, key, rights)
        response = json_response(made, 201)
        response.headers["Location"] = f"{BATCHES}/{made['id']}"
        return response

    async def _parts(self, request: web.Request) -> tuple[Mapping[str, Any], list[Upload]]:
        """Read a multipart form: its part ``request`` (JSON), and the files in it."""
        body: Mapping[str, Any] = {}
        uploads: list[Upload] = []
        left = self._files_bytes_max
        try:
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or len(uploads) >= PARTS_MAX:
                    raise refused(
                        ErrorClass.BAD_REQUEST, "the form has parts of parts, or too many"
                    )
                most = BODY_BYTES_MAX if part.name == REQUEST_PART else left
                data = bytearray()
                while piece := await part.read_chunk():
                    request[HELD].reserve_bytes(len(piece))
                    data += piece
                    if len(data) > most:
                        raise too_large()
                if part.name == REQUEST_PART:
                    body = reading.parse_object(bytes(data))
                    continue
                role = _ROLES.get(part.name or "")
                if role is None:
                    known = f"{REQUEST_PART}, {', '.join(_ROLES)}"
                    raise refused(
                        ErrorClass.BAD_REQUEST,
                        f"unknown part {(part.name or '')[:80]!r}",
                        f"known parts: {known}",
                    )
                left -= len(data)
                uploads.append(Upload(role, part.filename or "", bytes(data)))
        except (ValueError, RuntimeError, BadHttpMessage) as error:  # as aiohttp reads forms
            why = f"the form cannot be read: {str(error)[:200]}"
            raise refused(ErrorClass.BAD_REQUEST, why) from None
        return body, uploads

    async def state(self, request: web.Request) -> web.Response:
        """Return one job's state, without its other fields."""
        return json_response(await self._jobs.state(request[USER], batch_id(request)))


def is_livys(path: str) -> bool:
    """True if Livy's clients use this path; then errors also have Livy's field ``msg``."""
    return path.startswith(BATCHES) or is_interactive(path)


def is_interactive(path: str) -> bool:
    """True if the path is one of Livy's interactive sessions."""
    return path == SESSIONS or path.startswith(f"{SESSIONS}/")


def no_sessions() -> RequestError:
    """Return the error for a client that asks for Livy's interactive sessions."""
    return refused(
        ErrorClass.NOT_FOUND,
        "HAProc has no interactive sessions of Livy",
        "submit a program with POST /batches, open PySpark at sc://host:port (the Spark Connect "
        "door), or send SQL to /api/2.0/sql/statements",
    )


def batch_id(request: web.Request) -> int:
    """Return the job's id in a request's path."""
    return reading.whole_number(request.match_info["batch_id"], "the batch's id", 16)


def page_of(request: web.Request) -> tuple[int | None, int]:
    """Return where a page begins (None: not given, or -1), and how many entries it may have."""
    reading.no_unknown(request.query, ("from", "size"))
    start = request.query.get("from")
    size = reading.whole_number(request.query.get("size", str(PAGE_DEFAULT)), "size")
    first = None if start is None or start == "-1" else reading.whole_number(start, "from")
    return first, min(size, PAGE_MAX)
