"""Health, readiness, the ring's status, metrics and the OpenAPI document, on both HTTP doors."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml
from aiohttp import web

from dmq import Json
from haproc import __version__
from haproc.doors.http.bodies import json_response, raw_json
from haproc.metrics import CONTENT_TYPE, Metrics

# The OpenAPI document of both listeners: `openapi.yaml`, served as JSON.


@functools.cache
def document_json() -> bytes:
    """Return the OpenAPI document as JSON, with the version of this HAProc."""
    # libyaml reads it in a tenth of a second, Python's own reader in almost one.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(Path(__file__).with_name("openapi.yaml").read_bytes(), loader)
    document["info"]["version"] = __version__
    return json.dumps(document, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether clients may send statements here, and why not."""

    serving: bool
    state: str
    reason: str = ""
    drained: bool = False
    """True if an operator has drained the cluster."""


class StatusSource(Protocol):
    """Gives the status of a HAProc."""

    def readiness(self) -> Readiness:
        """Return the state, and whether the HAProc serves clients."""
        ...

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        ...


class StatusDoor:
    """The handlers of the routes for health, status, metrics and the OpenAPI document."""

    def __init__(self, status: StatusSource, metrics: Metrics) -> None:
        self._status = status
        self._metrics = metrics
        self._document = document_json()  # read here: a request for it must not block the loop

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [
            web.get("/healthz", self.healthz, allow_head=False),
            web.get("/readyz", self.readyz, allow_head=False),
            web.get("/clusterStatus", self.cluster_status, allow_head=False),
            web.get("/metrics", self.metrics, allow_head=False),
            web.get("/openapi.json", self.openapi, allow_head=False),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200 as long as the process runs."""
        return raw_json(b'{"status":"ok"}')

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if clients may send statements here, 503 if not."""
        ready = self._status.readiness()
        body = {"state": ready.state, "reason": ready.reason, "drained": ready.drained}
        return json_response(body, 200 if ready.serving else 503)

    async def cluster_status(self, request: web.Request) -> web.Response:
        """Answer with this HAProc's view of the ring."""
        return json_response(self._status.cluster_status())

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus' text format."""
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.Response:
        """Answer with the OpenAPI document."""
        return raw_json(self._document)
