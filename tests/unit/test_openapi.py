"""Tests that `openapi.yaml` is valid OpenAPI 3.1, and agrees with the routes and the constants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from jsonschema import Draft202012Validator

from haproc import __version__
from haproc.classify.model import BUDGET_MAX_S, Kind, OperationClass, WriteConcern
from haproc.config.model import Consistency
from haproc.config.tree import parse
from haproc.doors import status
from haproc.doors.clients import rows_door, statement_request
from haproc.doors.http.reading import AGE_MAX_S, ID_PATTERN
from haproc.doors.http.statuses import CODE_OF_STATUS
from haproc.doors.operators import queue, ring
from haproc.failure import FailureKind, WriteOutcome
from haproc.jobs import request as job_request
from haproc.jobs import service as jobs
from haproc.jobs.model import BatchState, Outcome
from haproc.membership.exchange import Way
from haproc.pin.literals import Treatment
from haproc.replicate.agree.findings import Finding
from haproc.replicate.archive.pages import ROWS_MAX
from haproc.replicate.backing_up import BackupState
from haproc.replicate.queue.facts import Fate
from haproc.replicate.queue.operation_status import Position
from haproc.replicate.records.progress import CopyWay
from haproc.replicate.restoring import RestoreState
from haproc.route.model import Fanout
from haproc.route.rows.forms import FormKind
from haproc.statements.execution import StatementState
from haproc.statements.request import TIMEOUT_MAX_S, Disposition, Format, OnWaitTimeout
from tests.unit.door_rig import STATEMENTS, door

DOCUMENT: dict[str, Any] = json.loads(status.document_json())
PATHS, COMPONENTS = DOCUMENT["paths"], DOCUMENT["components"]
SCHEMAS = COMPONENTS["schemas"]
SHAPE = Path(__file__).with_name("openapi_shape.yaml")
SOURCE = Path(status.__file__).with_name("openapi.yaml")
ROWS = "/api/ha/tables/{table}/rows"

BETWEEN_PEERS = {
    ("post", "/heartbeat"),
    ("post", "/reportlag"),
    ("post", "/ha/v1/apply"),
    ("post", "/ha/v1/copy"),
    ("post", "/ha/v1/query"),
    ("get", "/ha/v1/outcomes/{offset}"),
    ("get", "/ha/v1/latencies"),
    ("get", "/ha/v1/progress"),
}
"""Routes that only HAProcs of one version use. They are not in the document."""

ENUMS: dict[str, Iterable[str | None]] = {
    "AskedConcern": (*WriteConcern, "default"),
    "BackupState": BackupState,
    "CopyWay": CopyWay,
    "Consistency": Consistency,
    "Disposition": Disposition,
    "ErrorCode": CODE_OF_STATUS.values(),
    "FailureKind": FailureKind,
    "Fanout": Fanout,
    "Fate": Fate,
    "Finding": Finding,
    "Format": Format,
    "JobOutcome": (*Outcome, None),
    "JobState": BatchState,
    "Kind": Kind,
    "OnWaitTimeout": OnWaitTimeout,
    "OperationClass": OperationClass,
    "Position": Position,
    "RequestedClass": {*OperationClass} - {OperationClass.SESSION},
    "RestoreState": RestoreState,
    # Databricks has one more.
    "StatementState": (*StatementState, "CLOSED"),
    "Treatment": Treatment,
    # Two of Databricks' states, no enum of ours: whether the cluster serves.
    "WarehouseState": ("RUNNING", "STARTING"),
    "Way": Way,
    "WriteConcern": WriteConcern,
    "WriteOutcome": WriteOutcome,
}


def routes(app: web.Application) -> set[tuple[str, str]]:
    """Return the method and path of each route of an application."""
    return {
        (route.method.lower(), resource.canonical)
        for route in app.router.routes()
        if (resource := route.resource) is not None
        and (resource.canonical == "/" or not resource.canonical.endswith("/"))
    }


def resolved(described: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter or a response, resolved if it is a reference to a component."""
    if (reference := described.get("$ref")) is None:
        return described
    _, _, kind, name = reference.split("/")
    found: dict[str, Any] = COMPONENTS[kind][name]
    return found


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of each operation."""
    for path, methods in PATHS.items():
        for method, operation in methods.items():
            yield method, path, operation


def parameters(method: str, path: str, where: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of an operation's parameters, by name."""
    described = map(resolved, PATHS[path][method].get("parameters", ()))
    return {each["name"]: each["schema"] for each in described if each["in"] == where}


def references(node: Any) -> Iterator[str]:
    """Yield each reference of a document."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


# -- the form ------------------------------------------------------------------------------------


def test_openapi_document_is_valid_openapi_3_1() -> None:
    shape = yaml.safe_load(SHAPE.read_text())
    Draft202012Validator.check_schema(shape)
    Draft202012Validator(shape).validate(DOCUMENT)


def test_openapi_contains_each_key_once() -> None:
    assert parse(SOURCE.read_text()).problems == []


def test_openapi_references_resolve_and_every_component_is_used() -> None:
    components = {
        f"#/components/{kind}/{name}"
        for kind in ("parameters", "responses", "schemas")
        for name in COMPONENTS[kind]
    }
    assert set(references(DOCUMENT)) == components


def test_openapi_operation_ids_are_unique() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))


def test_openapi_declares_the_parameters_of_each_path() -> None:
    for method, path, _ in operations():
        assert set(parameters(method, path, "path")) == set(re.findall(r"{(\w+)}", path)), path


def test_openapi_version_is_the_version_of_the_package() -> None:
    assert DOCUMENT["info"]["version"] == __version__


# -- the routes ----------------------------------------------------------------------------------


async def test_openapi_lists_exactly_the_routes_of_clients_and_operators(
    tmp_path: Path,
) -> None:
    for name, operator in (("client door", False), ("operator door", True)):
        hidden = BETWEEN_PEERS if operator else set()
        async with door(tmp_path, operator=operator) as rig:
            served = routes(rig.app)
        written = {(method, path) for method, path, each in operations() if name in each["tags"]}
        assert hidden <= served
        assert served - hidden == written


# -- the product's constants ---------------------------------------------------------------------


def test_openapi_enums_are_those_of_the_product() -> None:
    written = {name: set(schema["enum"]) for name, schema in SCHEMAS.items() if "enum" in schema}
    assert written == {name: set(values) for name, values in ENUMS.items()}
    assert SOURCE.read_text().count("enum:") == len(ENUMS)


def test_openapi_bounds_are_those_of_the_product() -> None:
    assert SCHEMAS["Identifier"]["pattern"] == f"^{ID_PATTERN}$"
    assert parameters("post", "/batches", "header")["Idempotency-Key"]["pattern"] == (
        f'^"?{ID_PATTERN}"?$'
    )
    assert SCHEMAS["Timeout"]["maximum"] == TIMEOUT_MAX_S
    assert SCHEMAS["ApplyBudget"]["maximum"] == BUDGET_MAX_S
    assert SCHEMAS["Age"]["maximum"] == AGE_MAX_S
    rows = parameters("get", "/api/ha/operations", "query")["rows"]
    assert rows["maximum"] == rows["default"] == ROWS_MAX
    assert parameters("get", "/batches", "query")["size"]["default"] == jobs.PAGE_DEFAULT
    for path, module in (("/ha/v1/queue", queue), ("/ha/v1/sessions", ring)):
        limit = parameters("get", path, "query")["limit"]
        assert (limit["maximum"], limit["default"]) == (module.PAGE_MAX, module.PAGE_DEFAULT)


def test_openapi_request_fields_are_those_that_the_doors_read() -> None:
    assert set(SCHEMAS["StatementRequest"]["properties"]) == set(statement_request.FIELDS)
    assert set(SCHEMAS["BatchRequest"]["properties"]) == set(job_request.FIELDS)
    assert set(parameters("post", STATEMENTS, "header")) == set(statement_request.READ_HEADERS)
    assert set(parameters("post", ROWS, "header")) == set(statement_request.HEADERS)
    assert set(parameters("post", ROWS, "query")) == set(rows_door.PARAMETERS)
    assert set(PATHS[ROWS]["post"]["requestBody"]["content"]) == set(FormKind)


def test_openapi_errors_have_the_products_statuses_with_one_response_each() -> None:
    statuses = {
        (status, answer["$ref"])
        for _, _, operation in operations()
        for status, answer in operation["responses"].items()
        if "$ref" in answer
    }
    assert len(statuses) == len(COMPONENTS["responses"])
    assert {int(status) for status, _ in statuses} <= set(CODE_OF_STATUS)
