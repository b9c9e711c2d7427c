"""The door for sessions: a client opens and closes its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import reading
from haproc.doors.http.access import ADMITTED, USER
from haproc.doors.http.bodies import check_json, json_response, raw_json, read_body
from haproc.failure import ErrorClass, refused
from haproc.route.model import Service
from haproc.route.offload import Texts
from haproc.statements.request_admission import RequestAdmission

STATEMENTS_MAX = 10_000
"""The most statements that open a session. A client with more never closes its session; chosen, not
measured."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The statements that give a new session its content.

    ``afresh``: True if they replace what the session has. A client that keeps its session's journal
    itself sends this to each HAProc that it uses.
    """

    statements: Sequence[str] = ()
    afresh: bool = False


class SessionDoor:
    """The handlers that open and close sessions."""

    def __init__(
        self,
        config: Config,
        cluster: str,
        service: Service,
        request_admission: RequestAdmission,
        texts: Texts,
    ) -> None:
        self._texts = texts
        self._config = config
        self._cluster = cluster
        self._service = service
        self._request_admission = request_admission

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        path = "/api/ha/sessions/{session_id}"
        return [web.put(path, self.open), web.delete(path, self.close)]

    async def open(self, request: web.Request) -> web.Response:
        """Open the session; if another HAProc owned it, this one adopts it."""
        session_id = reading.check_identifier(request.match_info["session_id"], "the session's id")
        check_json(request)
        body = await read_body(request, self._config.limits.statement_body_bytes_max)
        opening = await self._texts.work_on_text(request[USER], len(body), read_opening, body)
        async with self._request_admission.permit(request[USER]):
            opened = await self._service.open_session(
                session_id,
                request[USER],
                opening.statements,
                afresh=opening.afresh,
                rights=request[ADMITTED].rights,
            )
        return json_response({**opened, "cluster": self._cluster})

    async def close(self, request: web.Request) -> web.Response:
        """Close the session; no error if there is no such session."""
        session_id = reading.check_identifier(request.match_info["session_id"], "the session's id")
        await self._service.close_session(session_id, request[USER])
        return raw_json(b"{}")


def read_opening(body: bytes) -> Opening:
    """Read a body as the content of a new session; raises RequestError."""
    given = reading.parse_object(body) if body.strip() else {}
    reading.no_unknown(given, ("begin_with", "statements"))
    if "statements" in given and "begin_with" in given:
        raise refused(ErrorClass.BAD_REQUEST, "give begin_with or statements, not both")
    if given.get("statements") is not None:
        return Opening(_texts(given, "statements"), afresh=True)
    return Opening(_texts(given, "begin_with"))


def _texts(given: Mapping[str, Any], name: str) -> list[str]:
    statements = given.get(name)
    if statements is None:
        return []
    if not isinstance(statements, list):
        raise reading.wrong(name, "a list of strings", statements)
    if len(statements) > STATEMENTS_MAX:
        raise refused(
            ErrorClass.BAD_REQUEST, f"a session begins with at most {STATEMENTS_MAX} statements"
        )
    for index, statement in enumerate(statements):
        if not isinstance(statement, str):
            raise reading.wrong(f"{name}[{index}]", "a string", statement)
    return statements
