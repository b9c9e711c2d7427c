"""The statements door: answers, waiting, repeating, cancelling, keeping."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from haproc.classify.model import OperationClass, RefusedError
from haproc.config.model import Limits, User
from haproc.doors.apps import REGISTRY
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.route.model import SentSql
from tests.unit.door_rig import (
    ARROW,
    ONE,
    STATEMENTS,
    WAIT_S,
    Canned,
    Rig,
    chunks_of,
    door,
)

NUMBERS = [pa.table({"n": pa.array(range(i * 100, i * 100 + 100), pa.int64())}) for i in range(3)]


async def until(condition: Any) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_statement_select_answers_as_documented(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        answer = await rig.post(statement="SELECT 1", request_id="r1")
        assert answer["statement_id"] == "r1"
        assert answer["status"] == {"state": "SUCCEEDED"}
        assert answer["result"]["data_array"] == [["1"]]
        assert answer["manifest"]["schema"]["columns"][0]["type_name"] == "INT"
        assert answer["ha"]["class"] == "query" and answer["ha"]["log_offset"] is None
        assert await rig.get(f"{STATEMENTS}/r1") == answer


async def test_statement_fields_reach_the_service(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        await rig.post(
            statement="SELECT :n",
            parameters=[{"name": "n", "value": "5", "type": "INT"}],
            catalog="c",
            schema="s",
            session_id="sess",
            operation_class="query",
            fanout="parallel",
            write_concern="majority",
            consistency="any",
            timeout_s=3,
            age_s=7.5,
            warehouse_id="w",
        )
        request = rig.service.requests[0]
        assert request.statement == SentSql("SELECT 5")
        assert (request.catalog, request.schema, request.session_id) == ("c", "s", "sess")
        assert request.operation_class is OperationClass.QUERY
        assert request.timeout_s == 3.0 and request.fanout == "parallel"
        assert request.write_concern == "majority"
        assert request.age_s == 7.5
        assert request.arrived_s is not None
        assert request.arrived_s <= asyncio.get_running_loop().time()


async def test_statement_parameter_rows_become_one_insert(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rows = [[{"value": "1", "type": "INT"}], [{"value": "2", "type": "INT"}]]
        await rig.post(statement="INSERT INTO t VALUES (?)", parameter_rows=rows)
        assert len(rig.service.requests) == 1
        assert rig.service.requests[0].statement == SentSql("INSERT INTO t VALUES (1), (2)")


async def test_statement_write_reports_offset_and_outcomes(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        answer = await rig.post(statement="INSERT")
        assert answer["ha"] == {
            "cluster": "a",
            "class": "asynchronous",
            "log_offset": 7,
            "outcomes": {"a": "applied"},
            "affected_rows": 1,
            "after_offset": 8,
        }


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (
            RequestError(FailureKind.AVAILABILITY, "down", error_class="X", offset=17),
            503,
            {"kind": "availability", "log_offset": 17, "error_code": "TEMPORARILY_UNAVAILABLE"},
        ),
        (RequestError(FailureKind.REFUSED, "no", error_class="Y"), 400, {"kind": "refused"}),
        (
            RequestError(FailureKind.REFUSED, "?", error_class="HAPROC_SESSION_UNKNOWN"),
            404,
            {"error_class": "HAPROC_SESSION_UNKNOWN"},
        ),
        (
            RequestError(FailureKind.REFUSED, "used", error_class="HAPROC_REQUEST_ID_REUSED"),
            409,
            {"error_code": "ALREADY_EXISTS"},
        ),
        (RefusedError("HAPROC_UNCLASSIFIED", "what?", "a rule"), 400, {"hint": "a rule"}),
        (
            EngineError(ErrorKind.AVAILABILITY, "gone"),
            503,
            {"kind": "availability", "outcome": "NOT_SENT"},
        ),
        (
            ZeroDivisionError("a bug"),
            503,
            {"error_class": "HAPROC_INTERNAL", "outcome": "UNKNOWN", "kind": "availability"},
        ),
    ],
)
async def test_statement_failure_answers_with_its_own_status(
    tmp_path: Path, error: Exception, status: int, told: dict[str, Any]
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["BAD"] = Canned(error=error)
        answer = await rig.post(status, statement="BAD", request_id="r")
        assert answer.items() >= told.items()
        assert answer["cluster"] == "a" and "a bug" not in answer["message"]
        async with rig.http.post(
            rig.url + STATEMENTS,
            json={"statement": "BAD", "request_id": "r"},
            headers=ARROW,
        ) as streamed:
            assert streamed.status == status
            assert (await streamed.json()).items() >= told.items()


async def test_statement_application_error_answers_200_failed(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        error = RequestError(
            FailureKind.APPLICATION,
            "no such table",
            error_class="TABLE_OR_VIEW_NOT_FOUND",
            sqlstate="42P01",
            outcome=WriteOutcome.REJECTED,
        )
        rig.service.table["BAD"] = Canned(error=error)
        answer = await rig.post(statement="BAD", request_id="r1")
        assert answer["status"]["state"] == "FAILED"
        assert answer["status"]["error"]["sqlstate"] == "42P01"
        assert answer["status"]["error"]["outcome"] == "REJECTED"
        assert "result" not in answer
        assert await rig.get(f"{STATEMENTS}/r1") == answer
        chunk = await rig.get(f"{STATEMENTS}/r1/result/chunks/0", 422)
        assert chunk["error_class"] == "TABLE_OR_VIEW_NOT_FOUND"


async def test_statement_not_waited_for_runs_on_and_is_fetched_later(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        answer = await rig.post(statement="SLOW", wait_timeout="0s", request_id="r1")
        assert answer["status"]["state"] in ("PENDING", "RUNNING")
        assert answer.keys() == {"statement_id", "status"}
        assert (await rig.get(f"{STATEMENTS}/r1"))["status"]["state"] == "RUNNING"
        await rig.get(f"{STATEMENTS}/r1/result/chunks/0", 404)
        hold.set()
        await until(lambda: rig.app[REGISTRY].gate.inside == 0)
        assert (await rig.get(f"{STATEMENTS}/r1"))["result"]["data_array"] == [["1"]]


async def test_statement_cancelled_on_wait_timeout(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["SLOW"] = Canned(hold=asyncio.Event())
        body = {"wait_timeout": "5s", "on_wait_timeout": "CANCEL", "request_id": "r1"}
        answer = await rig.post(statement="SLOW", **body)
        assert answer["status"] == {"state": "CANCELED"}
        assert rig.service.cancelled == ["r1"]


async def test_cancel_query_cancels_it_and_write_goes_on(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        rig.service.table["WRITE"] = Canned(ONE.chunks, OperationClass.ASYNCHRONOUS, hold=hold)
        for name in ("SLOW", "WRITE"):
            await rig.post(statement=name, wait_timeout="0s", request_id=name)
            async with rig.http.post(f"{rig.url}{STATEMENTS}/{name}/cancel") as response:
                assert response.status == 200 and await response.json() == {}
        assert (await rig.get(f"{STATEMENTS}/SLOW"))["status"]["state"] == "CANCELED"
        assert (await rig.get(f"{STATEMENTS}/WRITE"))["status"]["state"] == "RUNNING"
        hold.set()
        await until(lambda: rig.service.finished == ["WRITE"])
        async with rig.http.post(f"{rig.url}{STATEMENTS}/nothing/cancel") as response:
            assert response.status == 404


async def test_client_gone_query_cancelled_and_write_goes_on(tmp_path: Path) -> None:
    forms: tuple[dict[str, str], ...] = ({}, ARROW)
    for headers in forms:
        async with door(tmp_path) as rig:
            hold = asyncio.Event()
            rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
            rig.service.table["WRITE"] = Canned(ONE.chunks, OperationClass.ASYNCHRONOUS, hold=hold)
            for name in ("SLOW", "WRITE"):
                rig.service.started.clear()
                body = {"statement": name, "request_id": name}
                task = asyncio.create_task(
                    rig.http.post(rig.url + STATEMENTS, json=body, headers=headers)
                )
                await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await until(lambda: rig.service.cancelled == ["SLOW"])
            assert rig.app[REGISTRY].gate.inside == 1
            hold.set()
            await until(lambda: rig.service.finished == ["WRITE"])
            await until(lambda: rig.app[REGISTRY].gate.inside == 0)
            await until(lambda: all(stream.closed.is_set() for stream in rig.service.streams))


async def test_repeat_same_request_attaches_and_runs_once(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        posts = [
            asyncio.create_task(rig.post(statement="SLOW", request_id="r1", timeout_s=10 + i))
            for i in range(3)
        ]
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        hold.set()
        answers = await asyncio.gather(*posts)
        assert (
            answers[0]
            == answers[1]
            == answers[2]
            == await rig.post(statement="SLOW", request_id="r1")
        )
        assert len(rig.service.requests) == 1


async def test_repeat_other_request_or_delivery_conflicts(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        await rig.post(statement="SELECT 1", request_id="r1")
        other = await rig.post(409, statement="SELECT 2", request_id="r1")
        assert other["error_class"] == "HAPROC_REQUEST_ID_REUSED" and other["kind"] == "refused"
        await rig.post(409, statement="SELECT 1", request_id="r1", format="ARROW_STREAM")
        body = {"statement": "SELECT 2", "request_id": "r1"}
        async with rig.http.post(rig.url + STATEMENTS, json=body, headers=ARROW) as response:
            assert response.status == 409


async def test_repeat_after_availability_failure_runs_anew(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        down = RequestError(FailureKind.AVAILABILITY, "down", error_class="X")
        rig.service.table["S"] = Canned(error=down)
        await rig.post(503, statement="S", request_id="r1")
        rig.service.table["S"] = ONE
        assert (await rig.post(statement="S", request_id="r1"))["status"]["state"] == "SUCCEEDED"


async def test_repeat_while_streaming_runs_after_the_first(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["W"] = Canned(ONE.chunks, OperationClass.ASYNCHRONOUS, hold=hold)
        body = {"statement": "W", "request_id": "r1"}

        async def stream() -> bytes:
            async with rig.http.post(rig.url + STATEMENTS, json=body, headers=ARROW) as response:
                assert response.status == 200
                return await response.read()

        first = asyncio.create_task(stream())
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        others = [asyncio.create_task(stream()), asyncio.create_task(rig.post(**body))]
        await until(lambda: rig.app[REGISTRY].gate.inside >= 2)
        assert len(rig.service.requests) == 1
        hold.set()
        await asyncio.gather(first, *others)
        assert len(rig.service.requests) == 3


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_result_inline_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("haproc.statements.collect.CHUNK_BYTES", 1)
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", request_id="r", format=format)
        manifest = answer["manifest"]
        assert (manifest["total_chunk_count"], manifest["total_row_count"]) == (3, 300)
        assert [c["row_offset"] for c in manifest["chunks"]] == [0, 100, 200]
        assert manifest["schema"]["columns"][0]["type_text"] == "bigint"
        result, values = answer["result"], []
        while True:
            values += read_chunk(result, format)
            link = result.get("next_chunk_internal_link")
            if link is None:
                break
            result = await rig.get(link)
        assert values == list(range(300))
        await rig.get(f"{STATEMENTS}/r/result/chunks/3", 404)
        await rig.get(f"{STATEMENTS}/r/result/chunks/x", 404)


def read_chunk(result: dict[str, Any], format: str) -> list[int]:
    if format == "JSON_ARRAY":
        return [int(row[0]) for row in result["data_array"]]
    data = base64.b64decode(result["attachment"])
    return list(pa.ipc.open_stream(data).read_all()["n"].to_pylist())


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_result_small_chunks_gathered_into_one(tmp_path: Path, format: str) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", format=format)
        assert answer["manifest"]["total_chunk_count"] == 1
        assert read_chunk(answer["result"], format) == list(range(300))


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_result_external_links_served_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("haproc.statements.collect.CHUNK_BYTES", 1)
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", format=format, disposition="EXTERNAL_LINKS")
        values: list[int] = []
        links = answer["result"]["external_links"]
        for link in links:
            async with rig.http.get(link["external_link"]) as response:
                assert response.status == 200
                data = await response.read()
                assert len(data) == link["byte_count"]
                if format == "JSON_ARRAY":
                    values += [int(row[0]) for row in await response.json()]
                else:
                    values += pa.ipc.open_stream(data).read_all()["n"].to_pylist()
            assert link["expiration"].endswith("Z")
        assert values == list(range(300)) and len(links) == 3
        one = await rig.get(f"{STATEMENTS}/{answer['statement_id']}/result/chunks/1")
        assert one["external_links"][0]["chunk_index"] == 1
        wrong = links[0]["external_link"].rsplit("/", 2)[0] + "/" + "x" * 32 + "/0"
        async with rig.http.get(wrong) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("limit", "rows", "truncated"),
    [
        ({"row_limit": 150}, 150, True),
        ({"row_limit": 300}, 300, False),
        ({"row_limit": 100}, 100, True),
        ({"row_limit": 1}, 1, True),
        ({"row_limit": 5000}, 300, False),
        ({"byte_limit": 1}, 0, True),
        ({"byte_limit": 100}, 12, True),
        ({"byte_limit": 10_000_000}, 300, False),
    ],
)
async def test_result_cut_at_limits(
    tmp_path: Path, limit: dict[str, int], rows: int, truncated: bool
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", **limit)
        assert answer["manifest"]["truncated"] is truncated
        assert read_chunk(answer["result"], "JSON_ARRAY") == list(range(rows))
        assert all(stream.closed.is_set() for stream in rig.service.streams)


async def test_result_too_large_for_inline_refused_with_hint(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(inline_bytes_max=100)) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(413, statement="MANY")
        assert answer["error_class"] == "HAPROC_RESULT_TOO_LARGE"
        assert "EXTERNAL_LINKS" in answer["hint"]
        assert rig.service.streams[0].closed.is_set()
        linked = await rig.post(statement="MANY", disposition="EXTERNAL_LINKS")
        assert linked["status"]["state"] == "SUCCEEDED"


async def test_result_breaking_off_is_a_failure(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        lost = EngineError(ErrorKind.AVAILABILITY, "connection lost")
        rig.service.table["MANY"] = Canned([*chunks_of(*NUMBERS), lost])
        answer = await rig.post(503, statement="MANY")
        assert (answer["kind"], answer["outcome"]) == ("availability", "NOT_SENT")
        rig.service.table["W"] = Canned([lost], OperationClass.ASYNCHRONOUS)
        assert (await rig.post(503, statement="W", request_id="r"))["outcome"] == "UNKNOWN"
        wrong = EngineError(ErrorKind.APPLICATION, "1/0", error_class="DIVIDE_BY_ZERO")
        rig.service.table["MANY"] = Canned([*chunks_of(*NUMBERS), wrong])
        failed = await rig.post(statement="MANY")
        assert failed["status"]["error"]["error_class"] == "DIVIDE_BY_ZERO"


async def test_too_many_at_once_answered_429(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(statements_max=2)) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        for _ in range(2):
            await rig.post(statement="SLOW", wait_timeout="0s")
        answer = await rig.post(429, statement="SELECT 1")
        assert answer["kind"] == "availability" and answer["error_class"] == "HAPROC_BUSY"
        async with rig.http.post(
            rig.url + STATEMENTS, json={"statement": "SELECT 1"}, headers=ARROW
        ) as response:
            assert response.status == 429 and response.headers["Retry-After"] == "1"
        hold.set()
        assert await rig.app[REGISTRY].gate.wait_idle(WAIT_S)
        await rig.post(statement="SELECT 1")


async def test_kept_results_expire(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(results_kept_s=0.2)) as rig:
        linked = await rig.post(statement="SELECT 1", request_id="r1", disposition="EXTERNAL_LINKS")
        store = rig.app[REGISTRY].store
        assert store.bytes_used > 0
        await until(lambda: store.bytes_used == 0)
        await rig.get(f"{STATEMENTS}/r1", 404)
        async with rig.http.get(linked["result"]["external_links"][0]["external_link"]) as gone:
            assert gone.status == 404


async def test_kept_results_bounded_fetched_ones_leave_first(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(results_kept_bytes_max=20_000)) as rig:
        data = pa.table({"s": ["x" * 6000]})
        rig.service.table["BIG"] = Canned(chunks_of(data))
        links = {"disposition": "EXTERNAL_LINKS"}
        for name in ("one", "two"):
            await rig.post(statement="BIG", request_id=name, **links)
        full = await rig.post(503, statement="BIG", request_id="three", **links)
        assert full["error_class"] == "HAPROC_RESULTS_FULL"
        assert (await rig.post(statement="INSERT"))["status"]["state"] == "SUCCEEDED"
        link = (await rig.get(f"{STATEMENTS}/one"))["result"]["external_links"][0]
        async with rig.http.get(link["external_link"]) as response:
            assert response.status == 200
        await rig.post(statement="BIG", request_id="three", **links)
        await rig.get(f"{STATEMENTS}/one", 404)
        await rig.get(f"{STATEMENTS}/two", 200)


async def test_kept_results_spill_to_files_and_are_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results" / "a"
    folder.mkdir(parents=True)
    (folder / "left-behind").write_text("by an earlier process")
    async with door(tmp_path) as rig:
        assert not list(folder.parent.rglob("*behind"))
        monkeypatch.setattr(rig.app[REGISTRY].store, "_memory_bytes_max", 10)
        monkeypatch.setattr("haproc.statements.collect.CHUNK_BYTES", 1)
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        await rig.post(statement="MANY", request_id="r")
        assert len(list(folder.iterdir())) == 1
        values: list[int] = []
        for index in range(3):
            result = await rig.get(f"{STATEMENTS}/r/result/chunks/{index}")
            values += read_chunk(result, "JSON_ARRAY")
        assert values == list(range(300))
    assert not folder.exists()


async def test_statement_of_another_user_is_unknown(tmp_path: Path) -> None:
    users = (User("ann", "ann-token"), User("bob", "bob-token"))
    async with door(tmp_path, users=users) as rig:
        ann = {"Authorization": "Bearer ann-token"}
        bob = {"Authorization": "Bearer bob-token"}
        body = {"statement": "SELECT 1", "request_id": "r1", "disposition": "EXTERNAL_LINKS"}
        async with rig.http.post(rig.url + STATEMENTS, json=body, headers=ann) as response:
            link = (await response.json())["result"]["external_links"][0]["external_link"]
        assert rig.service.requests[0].user == "ann"
        for url in (f"{rig.url}{STATEMENTS}/r1", link):
            for headers, status in ((ann, 200), (bob, 404), ({}, 401)):
                async with rig.http.get(url, headers=headers) as response:
                    assert response.status == status
        async with rig.http.post(rig.url + STATEMENTS, json=body, headers=bob) as response:
            assert response.status == 200  # another one, of his own
        assert [request.user for request in rig.service.requests] == ["ann", "bob"]


async def test_large_body_read_in_a_thread(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        statement = "SELECT '" + "ü" * 100_000 + "'"
        await rig.post(statement=statement)
        assert rig.service.requests[0].statement == SentSql(statement)


async def test_manifest_types_named_as_databricks_does(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        columns = (Column("d", "decimal(10,2)", False), Column("i", "interval day to second"))
        rig.service.table["T"] = Canned(ONE.chunks, columns=columns)
        described = (await rig.post(statement="T"))["manifest"]["schema"]["columns"]
        assert described[0] == {
            "name": "d",
            "type_name": "DECIMAL",
            "type_text": "decimal(10,2)",
            "type_precision": 10,
            "type_scale": 2,
            "position": 0,
            "nullable": False,
        }
        assert described[1]["type_interval_type"] == "DAY TO SECOND"


async def test_door_closed_while_running_answer_still_comes(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        await rig.post(statement="SELECT 1")  # leaves an idle keep-alive connection
        port = rig.listener.port
        running = asyncio.create_task(rig.post(statement="SLOW"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        await until(lambda: rig.app[REGISTRY].gate.inside == 1)
        await rig.listener.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await rig.http.get(f"http://127.0.0.1:{port}/healthz")
        hold.set()
        assert (await running)["result"]["data_array"] == [["1"]]
        await rig.listener.open()
        await rig.post(statement="SELECT 1")


def test_rig_is_a_service() -> None:
    """The double keeps to the interface that the doors call."""
    from haproc.doors.operators.peers import PeerService
    from haproc.doors.status import StatusSource
    from haproc.route.interface import Service
    from tests.unit.door_rig import CannedPeers, CannedService, CannedStatus

    service: Service = CannedService()
    status: StatusSource = CannedStatus()
    peers: PeerService = CannedPeers()
    assert service and status and peers and Rig
