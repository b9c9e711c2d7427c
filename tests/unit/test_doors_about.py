"""The first requests of clients of Livy and of Databricks."""

from __future__ import annotations

from pathlib import Path

import pytest

from haproc.config.sections import User
from haproc.doors.http.bodies import REASON_CHARACTERS_MAX, error_response
from haproc.doors.status import Readiness
from haproc.failure import ErrorClass, refused
from tests.unit.door_rig import door
from tests.unit.test_doors_openapi import check

USERS = (User("ann", "ann-token"),)
ANN = {"Authorization": "Bearer ann-token"}
ME, WAREHOUSES = "/api/2.0/preview/scim/v2/Me", "/api/2.0/sql/warehouses"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("POST", "/"), ("GET", "/version"), ("GET", ME), ("GET", WAREHOUSES)],
)
async def test_first_requests_of_clients_are_answered_to_users_only(
    tmp_path: Path, method: str, path: str
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        # Airflow sends these headers, and no body.
        headers = {**ANN, "Content-Type": "application/json", "Accept": "application/json"}
        got, answer = await rig.ask(method, path, headers=headers)
        check(method.lower(), path, got, answer)
        assert got == 200
        assert await rig.status_of(method, path) == 401


async def test_databricks_sdk_receives_its_user_and_the_ring_as_a_warehouse(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS) as rig:
        rig.http.headers.update(ANN)
        assert (await rig.get(ME))["userName"] == "ann"
        (ring,) = (await rig.get(WAREHOUSES))["warehouses"]
        assert ring == {"id": "demo", "name": "demo", "state": "RUNNING"}
        rig.status.ready = Readiness(False, "RECOVERING")
        (ring,) = (await rig.get(WAREHOUSES))["warehouses"]
        assert ring["state"] == "STARTING"


async def test_errors_of_batches_have_the_field_that_livy_clients_show(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        error = await rig.get("/batches/5", 404)
        assert error["msg"] == f"{error['message']}: {error['hint']}"
        check("get", "/batches/{batch_id}", 404, error)
        assert "msg" not in await rig.get("/api/2.0/sql/statements/5", 404)


async def test_status_line_for_livy_clients_contains_the_reason(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig, rig.http.get(rig.url + "/sessions") as response:
        assert response.status == 404
        assert response.reason == (await response.json())["msg"]
        assert "/api/2.0/sql/statements" in str(response.reason)
    refusal = refused(ErrorClass.BAD_REQUEST, "a\r\nb\x7f\N{SNOWMAN}", "c" * 1000)
    line = error_response(refusal, "a", livy=True).reason
    assert line.startswith("a b??: ccc") and len(line) == REASON_CHARACTERS_MAX
