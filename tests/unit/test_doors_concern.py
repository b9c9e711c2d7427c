"""Write concern at the client door: as a field, as a header, and in repeated requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from haproc.classify.model import WriteConcern
from haproc.engine.arrow import stream_of
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.route.model import Request, SentSql
from tests.unit.canned import WRITE, Canned
from tests.unit.door_rig import STATEMENTS, WAIT_S, Rig, door

ROWS = {"Content-Type": "application/vnd.apache.arrow.stream"}
BODY = stream_of(pa.table({"n": pa.array([1], pa.int32()), "s": ["x"]}))


def concerns(rig: Rig) -> list[WriteConcern | None]:
    return [request.write_concern for request in rig.service.requests]


@pytest.mark.parametrize(
    ("field", "header", "expected"),
    [
        (None, None, None),
        ("all", None, WriteConcern.ALL),
        (None, "majority", WriteConcern.MAJORITY),
        ("one", "all", WriteConcern.ONE),
    ],
)
async def test_write_concern_is_read_from_a_field_or_a_header(
    tmp_path: Path, field: str | None, header: str | None, expected: WriteConcern | None
) -> None:
    headers = {"HAProc-Write-Concern": header} if header is not None else {}
    body = {"statement": "INSERT", "write_concern": field}
    query = f"?write_concern={field}" if field is not None else ""
    async with door(tmp_path) as rig:
        assert await rig.status_of("post", STATEMENTS, json=body, headers=headers) == 200
        path, headers = f"/api/ha/tables/t/rows{query}", {**ROWS, **headers}
        assert await rig.status_of("post", path, data=BODY, headers=headers) == 200
        assert concerns(rig) == [rows.write_concern for rows in rig.service.rows] == [expected]


async def test_unknown_write_concern_is_refused(tmp_path: Path) -> None:
    headers = {"HAProc-Write-Concern": "most"}
    async with door(tmp_path) as rig:
        json = {"statement": "INSERT"}
        got, answer = await rig.ask("post", STATEMENTS, json=json, headers=headers)
        assert got == 400
        assert "known values: one, majority, all" in answer["hint"]
        path, headers = "/api/ha/tables/t/rows", {**ROWS, **headers}
        assert await rig.status_of("post", path, data=BODY, headers=headers) == 400
        assert rig.service.requests == [] and rig.service.rows == []


async def test_write_repeated_with_another_concern_is_run_again(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for concern in (None, None, "all", "all"):
            await rig.post(statement="INSERT", request_id="r", write_concern=concern)
        assert concerns(rig) == [None, WriteConcern.ALL]


async def test_write_repeated_with_another_concern_waits_for_the_running_one(
    tmp_path: Path,
) -> None:
    hold = asyncio.Event()
    async with door(tmp_path) as rig, asyncio.timeout(WAIT_S):
        rig.service.table["INSERT"] = Canned(WRITE.chunks, WRITE.operation_class, hold=hold)
        first = asyncio.ensure_future(rig.post(statement="INSERT", request_id="r"))
        await rig.service.started.wait()
        second = asyncio.ensure_future(
            rig.post(statement="INSERT", request_id="r", write_concern="all")
        )
        await rig.get("/healthz")
        assert concerns(rig) == [None]
        hold.set()
        await asyncio.gather(first, second)
        assert concerns(rig) == [None, WriteConcern.ALL]


async def test_rows_repeated_with_another_concern_wait_for_the_running_ones(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with door(tmp_path) as rig, asyncio.timeout(WAIT_S):
        rig.service.table["t"] = Canned(hold=hold)

        async def send(query: str) -> int:
            path = f"/api/ha/tables/t/rows?request_id=r{query}"
            return await rig.status_of("post", path, data=BODY, headers=ROWS)

        first = asyncio.ensure_future(send(""))
        await rig.service.started.wait()
        second = asyncio.ensure_future(send("&write_concern=all"))
        await rig.get("/healthz")
        hold.set()
        assert await asyncio.gather(first, second) == [200, 200]
        assert [rows.write_concern for rows in rig.service.rows] == [None, WriteConcern.ALL]


async def test_unmet_concern_is_an_availability_error_and_a_repetition_runs_again(
    tmp_path: Path,
) -> None:
    error = RequestError(
        FailureKind.AVAILABILITY,
        "b did not apply it in time",
        error_class="HAPROC_WRITE_CONCERN",
        outcome=WriteOutcome.UNKNOWN,
        offset=7,
    )
    insert = {"statement": "INSERT", "request_id": "r", "write_concern": "all"}
    async with door(tmp_path) as rig:
        rig.service.table["INSERT"] = Canned(error=error)
        failed = await rig.post(503, **insert)
        assert (failed["outcome"], failed["log_offset"]) == ("UNKNOWN", 7)
        rig.service.table["INSERT"] = WRITE
        assert (await rig.post(**insert))["ha"]["log_offset"] == 7
        assert len(rig.service.requests) == 2


async def test_get_of_a_write_contains_concern_met_if_requested(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["W"] = WRITE
        rig.service.written["anonymous", "r1"] = Request("r1", SentSql("W"), "")
        path = f"{STATEMENTS}/r1"
        assert "concern_met" not in (await rig.get(path))["ha"]
        for concern, met in (("default", True), ("majority", True), ("all", False)):
            assert (await rig.get(f"{path}?concern={concern}"))["ha"]["concern_met"] is met
        assert rig.service.concerns == [None, WriteConcern.MAJORITY, WriteConcern.ALL]
        refused = await rig.get(f"{path}?concern=most", 400)
        assert "known values" in refused["hint"]


async def test_get_of_a_rejected_write_contains_whether_the_rejection_is_final(
    tmp_path: Path,
) -> None:
    error = RequestError(
        FailureKind.APPLICATION,
        "no table",
        error_class="TABLE_OR_VIEW_NOT_FOUND",
        outcome=WriteOutcome.REJECTED,
        offset=7,
    )
    async with door(tmp_path) as rig:
        rig.service.table["W"] = Canned(error=error)
        rig.service.written["anonymous", "r1"] = Request("r1", SentSql("W"), "")
        for final in (False, True):
            rig.service.final = final
            answer = await rig.get(f"{STATEMENTS}/r1?concern=default")
            assert answer["status"]["state"] == "FAILED"
            assert answer["ha"] == {"cluster": "a", "log_offset": 7, "final": final}
        error.offset = None
        assert "ha" not in await rig.get(f"{STATEMENTS}/r1")
