"""The two applications of a HAProc: the client door and the operator door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from haproc import tracing
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.doors.clients.about_door import AboutDoor, ClassifyDoor
from haproc.doors.clients.answers import LINK_SECRET, Answers, StreamedAnswers
from haproc.doors.clients.job_door import BATCHES, JobDoor
from haproc.doors.clients.rows_door import RowsDoor
from haproc.doors.clients.session_door import SessionDoor
from haproc.doors.clients.statement_door import StatementDoor
from haproc.doors.clients.statement_request import READ_HEADERS
from haproc.doors.http.access import ADMITTED, ANONYMOUS, USER, Admission, Admitted, Credentials
from haproc.doors.http.bodies import CLUSTER, HELD, REQUESTED, as_request_error, error_response
from haproc.doors.http.connections import Connection
from haproc.doors.http.reading import check_head
from haproc.doors.operators.clusters import DrainDoor, DrainService
from haproc.doors.operators.heartbeats import HeartbeatDoor
from haproc.doors.operators.peers import Forwarded, ForwardedDoor, PeerDoor, PeerService
from haproc.doors.operators.queue import OperatorService, QueueDoor
from haproc.doors.status import ALWAYS, StatusDoor, StatusSource
from haproc.doors.ui.door import OPEN
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
STATE_HEADER = "HAProc-State"
SMALL_BYTES = 64 << 10
"""An answer of this size lies in the sockets' buffers, not in memory of ours."""


def client_app(
    config: Config,
    cluster: str,
    service: Service,
    status: StatusSource,
    metrics: Metrics,
    texts: Texts | None = None,
    jobs: JobsHere | None = None,
) -> web.Application:
    """Return the client door's application; ``app[REGISTRY].gate`` has the statements under way."""
    request_admission = RequestAdmission(config, metrics)
    admission = Admission(Credentials.of_users(config), jobs.tokens if jobs else None)
    app = _application(config, cluster, admission, request_admission)
    folder = config.state_dir / "results" / cluster
    store = ResultStore(folder, Shares.of(config.limits.results_kept_bytes_max, config))
    registry = Registry(service, store, config, request_admission, metrics)
    app[REGISTRY] = registry
    texts = texts or Inline()
    answers, streams = Answers(registry, cluster), StreamedAnswers(registry)
    statements = StatementDoor(config, registry, answers, streams, texts, service, cluster)
    app.add_routes(statements.routes())
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
    forwarded: Forwarded | None = None,
) -> web.Application:
    """Return the operator door's application: health for everybody, all else under the secret."""
    app = waiting_app(config, cluster, status, metrics, heartbeats)
    secret = Credentials.of_peers(config)
    app.add_routes(PeerDoor(peers, secret).routes())
    app.add_routes(QueueDoor(operators, secret).routes())
    if forwarded is not None:
        bytes_max = config.limits.statement_body_bytes_max
        app.add_routes(ForwardedDoor(forwarded, secret, bytes_max).routes())
    app.add_routes(DrainDoor(drains, secret).routes())
    return app


def waiting_app(
    config: Config,
    cluster: str,
    status: StatusSource,
    metrics: Metrics,
    heartbeats: HeartbeatDoor,
) -> web.Application:
    """Return the operator door's application while there is nothing to ask but the status."""
    app = _application(config, cluster, Admission(Credentials(())))
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
    """Return the middleware that lets users in, and no exception out."""

    @web.middleware
    async def boundary(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            request[ADMITTED] = await _admitted(request, admission)
            user = request[USER] = request[ADMITTED].user
            if isinstance(request.protocol, Connection):
                request.protocol.is_of(user)
            check_head(request.headers, READ_HEADERS)
            if request_admission is None or request.path.rstrip("/") in ALWAYS:
                with tracing.received(request.headers):
                    return await handler(request)
            with request_admission.answering(user) as held, tracing.received(request.headers):
                request[HELD] = held
                return await _sent(request, await handler(request))
        except Exception as error:
            gone = request.transport is None or request.transport.is_closing()
            if gone and isinstance(error, ConnectionError):
                raise  # the client went away: nobody is there to be answered
            reported = as_request_error(error, f"{request.method} {_route(request)}")
            livy = request.path.startswith(BATCHES)
            response = error_response(reported, cluster, request.get(REQUESTED), livy=livy)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            let_go(error)
            return response

    return boundary


async def _admitted(request: web.Request, admission: Admission) -> Admitted:
    """Return whose a request is: a link to a result, which is handed on, says that itself.

    The status page's files are everybody's: a browser has no token before it has the page.
    """
    if _route(request).rstrip("/") in OPEN:
        return Admitted(ANONYMOUS)
    secret = request.match_info.get(LINK_SECRET)
    if secret is None:
        return await admission.admit(request.headers)
    return Admitted(request.app[REGISTRY].find_link(secret).request.user)


async def _sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a large answer while its bytes still count."""
    body = response.body if isinstance(response, web.Response) else None
    if isinstance(body, bytes) and len(body) > SMALL_BYTES:
        request[HELD].add(len(body))
        await response.prepare(request)
        await response.write_eof()
    return response


def _route(request: web.Request) -> str:
    """Return the path as it is in the code: what the client wrote belongs in no log."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "a path that is not known"


def _farewell(
    status: StatusSource,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the signal that sends clients elsewhere with the answers that they still get.

    Their connections end with these answers: when the door is closed, hardly anybody is just about
    to send something on one.
    """

    async def announce(request: web.Request, response: web.StreamResponse) -> None:
        ready = status.readiness()
        if not ready.serving:
            response.headers[STATE_HEADER] = ready.state
            response.headers["Connection"] = "close"
            response.force_close()

    return announce


async def _results(app: web.Application) -> AsyncIterator[None]:
    """Delete what an earlier process kept; forget what expires; end with nothing left."""
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
