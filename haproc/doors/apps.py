"""The two web applications of a HAProc: the client door and the operator door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from aiohttp import web

from haproc import tracing
from haproc.audit import CALLER, Caller, note_command, note_if_refusal
from haproc.classify.rights import Role
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.doors.clients.about_door import AboutDoor, ClassifyDoor
from haproc.doors.clients.answers import LINK_SECRET
from haproc.doors.clients.job_door import JobDoor, is_interactive, is_livys, no_sessions
from haproc.doors.clients.rows_door import RowsDoor
from haproc.doors.clients.session_door import SessionDoor
from haproc.doors.clients.statement_door import StatementDoor
from haproc.doors.clients.statement_request import READ_HEADERS
from haproc.doors.http.access import (
    ADMITTED,
    NOBODY,
    USER,
    Access,
    Admission,
    Admitted,
    check_role,
)
from haproc.doors.http.bodies import (
    ARRIVED,
    CLUSTER,
    HELD,
    REQUESTED,
    as_request_error,
    error_response,
)
from haproc.doors.http.connections import Connection
from haproc.doors.http.reading import check_head
from haproc.doors.operators.peers import (
    Forwarded,
    ForwardedDoor,
    HeartbeatDoor,
    PeerDoor,
    PeerService,
)
from haproc.doors.operators.queue import OperatorService, QueueDoor
from haproc.doors.operators.ring import DrainDoor, DrainService
from haproc.doors.roles import ALWAYS, needed
from haproc.doors.status import StatusDoor, StatusSource
from haproc.failure import let_go
from haproc.jobs.here import JobsHere
from haproc.metrics import Metrics
from haproc.route.model import Service
from haproc.route.offload import Inline, Texts
from haproc.route.spooled import Spools
from haproc.statements.registry import Registry
from haproc.statements.request_admission import RequestAdmission
from haproc.statements.store import ResultStore

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CONFIG = web.AppKey("config", Config)
REGISTRY = web.AppKey("registry", Registry)
SPOOLS = web.AppKey("spools", Spools)
PATH_SHOWN_MAX = 200
"""The most characters of an operator's path that the audit log shows."""
STATE_HEADER = "HAProc-State"
SMALL_BYTES = 64 << 10
"""An answer of at most this size is in the sockets' buffers, and not counted as HAProc's memory."""


def client_app(
    config: Config,
    cluster: str,
    service: Service,
    status: StatusSource,
    metrics: Metrics,
    texts: Texts | None = None,
    jobs: JobsHere | None = None,
    access: Access | None = None,
) -> web.Application:
    """Return the client door's application; ``app[REGISTRY]`` has the statements that run."""
    request_admission = RequestAdmission(config, metrics)
    admission = (access or Access(config)).clients(jobs.tokens if jobs else None)
    app = _application(config, cluster, admission, request_admission)
    folder = config.state_dir / "results" / cluster
    store = ResultStore(folder, Shares.of(config.limits.results_kept_bytes_max, config))
    registry = Registry(service, store, config, request_admission, metrics)
    app[REGISTRY] = registry
    texts = texts or Inline()
    app.add_routes(StatementDoor(config, registry, texts, service, cluster).routes())
    bodies = Shares.of(config.limits.spooled_bytes_max, config)
    spools = Spools(config.state_dir / "bodies" / cluster, bodies, config.limits)
    app[SPOOLS] = spools
    app.add_routes(RowsDoor(config, registry, spools).routes())
    app.add_routes(ClassifyDoor(config, service, request_admission).routes())
    app.add_routes(SessionDoor(config, cluster, service, request_admission, texts).routes())
    app.add_routes(JobDoor(config, jobs.service if jobs else None).routes())
    app.add_routes(StatusDoor(status, metrics).routes())
    app.add_routes(AboutDoor(config, status).routes())
    app.cleanup_ctx.append(_results)
    app.on_response_prepare.append(_farewell(status))
    return app


def operator_app(
    config: Config,
    cluster: str,
    peers: PeerService,
    operators: OperatorService,
    drains: DrainService,
    status: StatusSource,
    metrics: Metrics,
    heartbeats: HeartbeatDoor,
    forwarded: Forwarded,
    access: Access | None = None,
) -> web.Application:
    """Return the operator door's application: health is open to all, the rest needs a role."""
    app = waiting_app(config, cluster, status, metrics, heartbeats, access)
    app.add_routes(PeerDoor(peers).routes())
    app.add_routes(QueueDoor(operators).routes())
    bytes_max = config.limits.statement_body_bytes_max
    app.add_routes(ForwardedDoor(forwarded, bytes_max).routes())
    app.add_routes(DrainDoor(drains).routes())
    return app


def waiting_app(
    config: Config,
    cluster: str,
    status: StatusSource,
    metrics: Metrics,
    heartbeats: HeartbeatDoor,
    access: Access | None = None,
) -> web.Application:
    """Return the operator door's application of a HAProc that waits until it can reach the log.

    It shows its status and receives heartbeats.
    """
    app = _application(config, cluster, (access or Access(config)).operators())
    app.add_routes(heartbeats.routes())
    app.add_routes(StatusDoor(status, metrics).routes())
    return app


def _application(
    config: Config,
    cluster: str,
    admission: Admission,
    request_admission: RequestAdmission | None = None,
) -> web.Application:
    app = web.Application(middlewares=[_boundary(cluster, admission, request_admission)])
    app[CLUSTER] = cluster
    app[CONFIG] = config
    return app


def _boundary(
    cluster: str, admission: Admission, request_admission: RequestAdmission | None
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that admits a request's user, and turns exceptions into answers.

    ``request_admission``: the limits of the client door's requests; None at the operator door.
    """
    operators = request_admission is None

    @web.middleware
    async def boundary(request: web.Request, handler: _Handler) -> web.StreamResponse:
        request[ARRIVED] = asyncio.get_running_loop().time()
        caller = _caller(request, cluster, operators=operators)
        CALLER.set(caller)
        role = needed(_path(request), operators=operators, token="Authorization" in request.headers)
        try:
            request[ADMITTED] = by = await _admitted(request, admission, role)
            user = request[USER] = by.user
            CALLER.set(replace(caller, user=user))
            if role is not None:
                check_role(by, role)
            if isinstance(request.protocol, Connection):
                request.protocol.is_of(user)
            check_head(request.headers, READ_HEADERS)
            if request_admission is None or request.path.rstrip("/") in ALWAYS:
                with tracing.received(request.headers):
                    response = await handler(request)
                _note_command(request, role, str(response.status))
                return response
            with request_admission.answering(user) as held, tracing.received(request.headers):
                request[HELD] = held
                return await _sent(request, await handler(request))
        except Exception as error:
            gone = request.transport is None or request.transport.is_closing()
            if gone and isinstance(error, ConnectionError):
                raise  # the client has gone: it receives no answer
            if isinstance(error, web.HTTPNotFound) and is_interactive(request.path):
                error = no_sessions()
            reported = as_request_error(error, f"{request.method} {_route(request)}")
            note_if_refusal(reported)
            if role is not None and ADMITTED in request and request[ADMITTED].rights.has(role):
                _note_command(request, role, str(reported.error_class))
            livy = is_livys(request.path)
            response = error_response(reported, cluster, request.get(REQUESTED), livy=livy)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            let_go(error)
            return response

    return boundary


def _caller(request: web.Request, cluster: str, *, operators: bool) -> Caller:
    """Return what the audit log notes about a request's sender.

    It has an operator's path, but only the path pattern of a client's, which may contain a secret.
    """
    path = request.path[:PATH_SHOWN_MAX] if operators else _route(request)
    door = "operators" if operators else "clients"
    return Caller(cluster, door, f"{request.method} {path}", request.remote or "")


def _note_command(request: web.Request, role: Role | None, outcome: str) -> None:
    """Note an operator's command in the audit log; not a GET, because that changes nothing."""
    if role is Role.OPERATOR and request.method != "GET":
        note_command(outcome)


async def _admitted(request: web.Request, admission: Admission, role: Role | None) -> Admitted:
    """Return the user of a request. A link to a result is enough without a token.

    The status page's files are open to all: a browser has no token before it has the page.
    """
    secret = request.match_info.get(LINK_SECRET)
    if secret is not None:
        return Admitted(request.app[REGISTRY].find_link(secret).request.user)
    return NOBODY if role is None else await admission.admit(request.headers)


async def _sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Return the answer; if it is large, send it first, while its bytes count as held memory."""
    body = response.body if isinstance(response, web.Response) else None
    if isinstance(body, bytes) and len(body) > SMALL_BYTES:
        request[HELD].reserve_bytes(len(body))
        await response.prepare(request)
        await response.write_eof()
    return response


def _path(request: web.Request) -> str | None:
    """Return the pattern of the request's path, without a slash at its end; None: no such route."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical.rstrip("/") or "/"


def _route(request: web.Request) -> str:
    """Return the pattern of the request's path; the path itself must not get into any log file."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "a path that is not known"


def _farewell(
    status: StatusSource,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the function that marks answers while the HAProc does not serve clients.

    Each of these answers ends its connection. So when the door closes soon after, hardly any client
    is about to send a request on an open connection.
    """

    async def announce(request: web.Request, response: web.StreamResponse) -> None:
        ready = status.readiness()
        if not ready.serving:
            response.headers[STATE_HEADER] = ready.state
            response.headers["Connection"] = "close"
            response.force_close()

    return announce


async def _results(app: web.Application) -> AsyncIterator[None]:
    """Delete the results of an earlier process, then expired ones now and then, all at the end."""
    registry = app[REGISTRY]
    registry.store.clean()
    app[SPOOLS].clean()
    janitor = asyncio.create_task(_purge(registry, app[CONFIG].limits.results_kept_s))
    yield
    janitor.cancel()
    await asyncio.gather(janitor, return_exceptions=True)
    await registry.aclose()


async def _purge(registry: Registry, kept_s: float) -> None:
    while True:
        await asyncio.sleep(min(30.0, max(0.05, kept_s / 4)))
        registry.purge()
