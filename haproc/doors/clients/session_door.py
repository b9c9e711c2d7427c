"""The sessions door: a client opens its session here with the journal that it kept."""

from __future__ import annotations

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import fields
from haproc.doors.http.access import USER
from haproc.doors.http.bodies import check_json, json_response, raw_json, read_body
from haproc.failure import ErrorClass, refused
from haproc.route.interface import Service
from haproc.route.offload import Texts
from haproc.statements.gate import Gate

JOURNAL_STATEMENTS_MAX = 10_000
"""A longer journal is a client that never closes its session; chosen, not measured."""


class SessionDoor:
    """The handlers."""

    def __init__(
        self, config: Config, cluster: str, service: Service, gate: Gate, texts: Texts
    ) -> None:
        self._texts = texts
        self._config = config
        self._cluster = cluster
        self._service = service
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        path = "/api/ha/sessions/{session_id}"
        return [web.put(path, self.open), web.delete(path, self.close)]

    async def open(self, request: web.Request) -> web.Response:
        """Create the session, or start it anew, and run its journal."""
        session_id = fields.check_identifier(request.match_info["session_id"], "the session's id")
        check_json(request)
        body = await read_body(request, self._config.limits.statement_body_bytes_max)
        statements = await self._texts.run(request[USER], len(body), read_journal, body)
        with self._gate.place(request[USER]):
            opened = await self._service.open_session(session_id, request[USER], statements)
        return json_response({**opened, "cluster": self._cluster})

    async def close(self, request: web.Request) -> web.Response:
        """Close the session; one that is not there counts as closed."""
        session_id = fields.check_identifier(request.match_info["session_id"], "the session's id")
        await self._service.close_session(session_id, request[USER])
        return raw_json(b"{}")


def read_journal(body: bytes) -> list[str]:
    """Return the statements of a body; raises RequestError."""
    given = fields.parse_object(body) if body.strip() else {}
    fields.no_unknown(given, ("statements",))
    statements = given.get("statements")
    if statements is None:
        return []
    if not isinstance(statements, list):
        raise fields.wrong("statements", "a list of strings", statements)
    if len(statements) > JOURNAL_STATEMENTS_MAX:
        raise refused(
            ErrorClass.BAD_REQUEST, f"a journal has at most {JOURNAL_STATEMENTS_MAX} statements"
        )
    for index, statement in enumerate(statements):
        if not isinstance(statement, str):
            raise fields.wrong(f"statements[{index}]", "a string", statement)
    return statements
