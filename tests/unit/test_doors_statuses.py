"""The statuses of failures, and that no client doubles a write by repeating a request."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from haproc.config.sections import User
from haproc.doors.apps import REGISTRY
from haproc.doors.http.statuses import (
    OUTCOME_UNKNOWN,
    RequestedStatement,
    in_our_words,
    status_of,
)
from haproc.engine.arrow import stream_of
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, refused
from haproc.route.model import Request, SentSql
from tests.unit.canned import ONE, WRITE, Canned
from tests.unit.door_rig import ARROW, STATEMENTS, WAIT_S, Rig, door, until

SDK_WORDS = (
    "com.databricks.backend.manager.util.UnknownWorkerEnvironmentException",
    "does not have any associated worker environments",
    "There is no worker environment with id",
    "Unknown worker environment",
    "ClusterNotReadyException",
    "Unexpected error",
    "Please try again later or try a faster operation.",
    "RPC token bucket limit has been exceeded",
)
"""The texts that databricks-sdk 0.156 looks for in an error message of any status."""
REPEATED = {408, 409, 413, 421, 425, 429, *range(500, 600)}
"""The statuses at which some client repeats a POST: the SDK, urllib3, OkHttp, retry libraries."""
OWN, MADE = RequestedStatement("s1", True), RequestedStatement("s1", False)
CLASSES = list(ErrorClass)


def error(kind: FailureKind, outcome: WriteOutcome, error_class: str = "X") -> RequestError:
    return RequestError(kind, "Unexpected error", error_class=error_class, outcome=outcome)


@pytest.mark.parametrize(
    ("kind", "error_class"), list(itertools.product(FailureKind, [*CLASSES, "X"]))
)
def test_unknown_outcome_under_a_made_id_has_a_status_that_no_client_repeats(
    kind: FailureKind, error_class: str
) -> None:
    failed = error(kind, WriteOutcome.UNKNOWN, error_class)
    assert status_of(failed, MADE) not in REPEATED
    assert not any(word in in_our_words(failed, MADE).message for word in SDK_WORDS)
    assert "s1" in in_our_words(failed, MADE).message
    assert status_of(failed, OWN) == status_of(failed)  # its repetition is recognised
    assert in_our_words(failed, OWN) is failed


@pytest.mark.parametrize(
    ("kind", "outcome", "requested", "status"),
    [
        (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT, None, 503),
        (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT, OWN, 503),
        (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT, MADE, 503),
        (FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN, None, 503),
        (FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN, OWN, 503),
        (FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN, MADE, OUTCOME_UNKNOWN),
        (FailureKind.APPLICATION, WriteOutcome.REJECTED, OWN, 422),
        (FailureKind.APPLICATION, WriteOutcome.REJECTED, MADE, 422),
        (FailureKind.REFUSED, WriteOutcome.NOT_SENT, MADE, 400),
        (FailureKind.REFUSED, WriteOutcome.UNKNOWN, OWN, 400),
        (FailureKind.REFUSED, WriteOutcome.UNKNOWN, MADE, OUTCOME_UNKNOWN),
    ],
)
def test_status_follows_from_kind_outcome_and_id(
    kind: FailureKind, outcome: WriteOutcome, requested: RequestedStatement | None, status: int
) -> None:
    assert status_of(error(kind, outcome), requested) == status


# -- at the door -------------------------------------------------------------------------------


async def unknown(rig: Rig) -> None:
    lost = error(FailureKind.AVAILABILITY, WriteOutcome.UNKNOWN)
    rig.service.table["T"] = rig.service.table["t"] = Canned(error=lost)


@pytest.mark.parametrize("headers", [{}, ARROW])
async def test_statement_of_unknown_outcome_without_an_own_id_has_no_retry_status(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with door(tmp_path) as rig:
        await unknown(rig)
        async with rig.http.post(
            rig.url + STATEMENTS, json={"statement": "T"}, headers=headers
        ) as response:
            answer = await response.json()
            assert response.status == OUTCOME_UNKNOWN
            assert "Retry-After" not in response.headers
        assert answer["outcome"] == "UNKNOWN" and answer["error_code"] == "OUTCOME_UNKNOWN"
        assert answer["statement_id"] == rig.service.requests[0].id
        assert answer["statement_id"] in answer["message"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"request_id": "r1"}, {}),
        ({}, {"Idempotency-Key": '"r1"'}),
        ({}, {"Idempotency-Key": "r1"}),
        ({"query_tags": [{"key": "team", "value": "x"}, {"key": "request_id", "value": "r1"}]}, {}),
    ],
)
async def test_statement_of_unknown_outcome_with_an_own_id_may_be_repeated(
    tmp_path: Path, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with door(tmp_path) as rig:
        await unknown(rig)
        async with rig.http.post(
            rig.url + STATEMENTS, json={"statement": "T", **body}, headers=headers
        ) as response:
            answer = await response.json()
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (answer["statement_id"], answer["outcome"]) == ("r1", "UNKNOWN")


@pytest.mark.parametrize("tags", ["x", [1], [{"key": "request_id", "value": 1}]])
async def test_query_tags_of_another_form_are_refused(tmp_path: Path, tags: Any) -> None:
    async with door(tmp_path) as rig:
        await rig.post(400, statement="SELECT 1", query_tags=tags)


async def test_rows_of_unknown_outcome_are_answered_with_their_id(tmp_path: Path) -> None:
    data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    async with door(tmp_path) as rig:
        await unknown(rig)
        for query, status in (("", OUTCOME_UNKNOWN), ("?request_id=r1", 503)):
            path = f"/api/ha/tables/t/rows{query}"
            got, answer = await rig.ask("post", path, data=data, headers=headers)
            assert got == status
            assert answer["statement_id"] == rig.service.rows[-1].id


# -- asking afterwards -------------------------------------------------------------------------


async def test_statement_of_unknown_outcome_is_found_in_the_log_later(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        await unknown(rig)
        lost = await rig.post(OUTCOME_UNKNOWN, statement="T")
        path = f"{STATEMENTS}/{lost['statement_id']}"
        assert (await rig.get(path, 503))["outcome"] == "UNKNOWN"
        rig.service.table["W"] = WRITE
        rig.service.written["anonymous", lost["statement_id"]] = Request("x", SentSql("W"), "")
        answer = await rig.get(path)
        assert answer["status"] == {"state": "SUCCEEDED"}
        assert answer["ha"]["log_offset"] == 7
        assert await rig.get(path) == answer


async def test_write_is_found_after_a_refused_reuse_of_its_id(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["W"] = WRITE
        rig.service.table["OTHER"] = Canned(
            error=refused(ErrorClass.REQUEST_ID_REUSED, "it was used for another request")
        )
        rig.service.written["anonymous", "r1"] = Request("r1", SentSql("W"), "")
        assert (await rig.post(409, statement="OTHER", request_id="r1"))["outcome"] == "NOT_SENT"
        assert (await rig.get(f"{STATEMENTS}/r1"))["status"] == {"state": "SUCCEEDED"}


async def test_write_of_another_door_is_found_for_its_user_only(tmp_path: Path) -> None:
    users = (User("ann", "ann-token"), User("bob", "bob-token"))
    async with door(tmp_path, users=users) as rig:
        rig.service.table["W"] = WRITE
        rig.service.written["ann", "r1"] = Request("x", SentSql("W"), "")
        for name, status in (("ann", 200), ("bob", 404)):
            headers = {"Authorization": f"Bearer {name}-token"}
            assert await rig.status_of("get", f"{STATEMENTS}/r1", headers=headers) == status
        body = {"statement": "INSERT", "request_id": "r1"}
        headers = {"Authorization": "Bearer ann-token"}
        # The log tells whether it is the same.
        assert await rig.status_of("post", STATEMENTS, json=body, headers=headers) == 200
        assert rig.service.requests[-1].statement == SentSql("INSERT")


async def test_request_ids_of_different_users_are_independent(tmp_path: Path) -> None:
    users = (User("ann", "ann-token"), User("bob", "bob-token"))
    data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
    async with door(tmp_path, users=users) as rig:
        for name in ("ann", "bob"):
            headers = {"Authorization": f"Bearer {name}-token"}
            body = {"statement": f"SELECT '{name}'", "request_id": "r1"}
            assert await rig.status_of("post", STATEMENTS, json=body, headers=headers) == 200
            path = f"/api/ha/tables/{name}/rows?request_id=r1"
            headers["Content-Type"] = "application/vnd.apache.arrow.stream"
            assert await rig.status_of("post", path, data=data, headers=headers) == 200
        assert [(r.user, r.statement) for r in rig.service.requests] == [
            ("ann", SentSql("SELECT 'ann'")),
            ("bob", SentSql("SELECT 'bob'")),
        ]


@pytest.mark.parametrize(("own_id", "status"), [(False, OUTCOME_UNKNOWN), (True, 503)])
async def test_running_writes_are_answered_with_unknown_outcome_when_the_process_ends(
    tmp_path: Path, own_id: bool, status: int
) -> None:
    data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
    arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["W"] = rig.service.table["t"] = dataclasses.replace(WRITE, hold=hold)
        gate = rig.app[REGISTRY].request_admission

        async def ask(path: str, headers: dict[str, str] | None = None, **sent: Any) -> int:
            got, answer = await rig.ask("post", path, headers=headers, **sent)
            assert (answer["outcome"], answer["error_class"]) == ("UNKNOWN", "HAPROC_STOPPED")
            assert answer["statement_id"]
            return got

        def body(name: str) -> dict[str, str]:
            return {"statement": "W", **({"request_id": name} if own_id else {})}

        query = "?request_id=r3" if own_id else ""
        asking = [
            asyncio.create_task(ask(STATEMENTS, json=body("r1"))),
            asyncio.create_task(ask(STATEMENTS, ARROW, json=body("r2"))),
            asyncio.create_task(ask(f"/api/ha/tables/t/rows{query}", arrow, data=data)),
        ]
        await until(lambda: gate.inside == 3)
        gate.leave_all()
        assert [await each for each in asking] == [status] * 3
        hold.set()
        assert await gate.wait_idle(WAIT_S)


async def test_running_queries_are_answered_with_not_sent_when_the_process_ends(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["Q"] = dataclasses.replace(ONE, hold=asyncio.Event())
        asking = asyncio.create_task(rig.post(503, statement="Q"))
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 1)
        rig.app[REGISTRY].request_admission.leave_all()
        assert (await asking)["outcome"] == "NOT_SENT"
        rig.service.away = RequestError(
            FailureKind.AVAILABILITY, "draining", error_class="HAPROC_DRAINING"
        )
        assert (await rig.post(503, statement="Q"))["error_class"] == "HAPROC_DRAINING"
