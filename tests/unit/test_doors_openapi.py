"""The answers of the doors conform to the OpenAPI document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

from haproc.config.sections import Limits, User
from haproc.engine.arrow import stream_of
from haproc.failure import FailureKind, RequestError
from tests.unit.canned import Canned, chunks_of
from tests.unit.door_rig import STATEMENTS, Rig, door
from tests.unit.test_openapi import COMPONENTS, PATHS, resolved, routes


def check(method: str, path: str, status: int, answer: Any) -> None:
    """Validate a JSON answer against the document."""
    described = PATHS[path][method]["responses"]
    assert str(status) in described, f"{method} {path} answers {status}, which is not described"
    schema = resolved(described[str(status)])["content"]["application/json"]["schema"]
    whole = {**schema, "components": COMPONENTS}
    Draft202012Validator(whole).validate(answer)


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
@pytest.mark.parametrize("disposition", ["INLINE", "EXTERNAL_LINKS"])
async def test_answers_of_statements_conform_to_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, disposition: str
) -> None:
    monkeypatch.setattr("haproc.statements.store.CHUNK_BYTES", 1)
    async with door(tmp_path) as rig:
        table = pa.table({"n": [1, None], "d": pa.array([None, 1], pa.decimal128(5, 2))})
        rig.service.table["T"] = Canned(chunks_of(table, table))
        body = {"format": format, "disposition": disposition, "request_id": "r"}
        answer = await rig.post(statement="T", **body)
        check("post", STATEMENTS, 200, answer)
        one = STATEMENTS + "/{statement_id}"
        check("get", one, 200, await rig.get(f"{STATEMENTS}/r"))
        chunk = await rig.get(f"{STATEMENTS}/r/result/chunks/0")
        check("get", one + "/result/chunks/{chunk_index}", 200, chunk)
        _, answer = await rig.ask("post", f"{STATEMENTS}/r/cancel")
        check("post", one + "/cancel", 200, answer)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError(FailureKind.APPLICATION, "x", error_class="X"), 200),
        (RequestError(FailureKind.AVAILABILITY, "x", error_class="X", offset=3), 503),
        (RequestError(FailureKind.REFUSED, "x", error_class="X"), 400),
        (RequestError(FailureKind.REFUSED, "x", error_class="HAPROC_SESSION_UNKNOWN"), 404),
        (RequestError(FailureKind.REFUSED, "x", error_class="HAPROC_REQUEST_ID_REUSED"), 409),
    ],
)
async def test_answers_of_failures_conform_to_the_document(
    tmp_path: Path, error: RequestError, status: int
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["T"] = Canned(error=error)
        check("post", STATEMENTS, status, await rig.post(status, statement="T"))


async def test_answers_of_limits_and_access_conform_to_the_document(tmp_path: Path) -> None:
    async with door(
        tmp_path, limits=Limits(statements_max=1, statement_queue_s=0, inline_bytes_max=1)
    ) as rig:
        check("post", STATEMENTS, 413, await rig.post(413, statement="SELECT 1"))
        async with rig.app[_registry()].request_admission.permit("anonymous"):
            check("post", STATEMENTS, 429, await rig.post(429, statement="SELECT 1"))
    async with door(tmp_path, users=(User("ann", "ann-token"),)) as rig:
        for method, path in routes(rig.app):
            got, answer = await rig.ask(method, re.sub(r"{\w+}", "1", path))
            check(method, path, got, answer)
            assert got == (404 if "link_secret" in path else 401)


def _registry() -> Any:
    from haproc.doors.apps import REGISTRY

    return REGISTRY


async def test_answers_of_the_other_paths_conform_to_the_document(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for path in ("/healthz", "/readyz", "/clusterStatus", "/openapi.json"):
            check("get", path, 200, await rig.get(path))
        url = "/api/ha/sessions/{session_id}"
        got, answer = await rig.ask("put", "/api/ha/sessions/s", json={})
        check("put", url, got, answer)
        got, answer = await rig.ask("delete", "/api/ha/sessions/s")
        check("delete", url, got, answer)
        await _check_rows(rig)


async def _check_rows(rig: Rig) -> None:
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    for column in ("n", "x"):
        data = stream_of(pa.table({column: pa.array([1], pa.int32())}))
        got, answer = await rig.ask("post", "/api/ha/tables/t/rows", data=data, headers=headers)
        check("post", "/api/ha/tables/{table}/rows", got, answer)
        assert got == (200 if column == "n" else 400)
