"""The statements door: answers, waiting, repeating, cancelling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from haproc.classify.model import OperationClass, RefusedError
from haproc.config.sections import Limits, User
from haproc.doors.apps import REGISTRY
from haproc.doors.http.access import Admission, Admitted
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.replicate.queue.facts import Fate
from haproc.route.model import SentSql
from tests.unit.canned import ONE, Canned
from tests.unit.door_rig import ARROW, STATEMENTS, WAIT_S, door, until


async def test_select_is_answered_as_documented(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        answer = await rig.post(statement="SELECT 1", request_id="r1")
        assert answer["statement_id"] == "r1"
        assert answer["status"] == {"state": "SUCCEEDED"}
        assert answer["result"]["data_array"] == [["1"]]
        assert answer["manifest"]["schema"]["columns"][0]["type_name"] == "INT"
        assert answer["ha"]["class"] == "query" and answer["ha"]["log_offset"] is None
        assert await rig.get(f"{STATEMENTS}/r1") == answer


async def test_fields_of_a_statement_reach_the_service(tmp_path: Path) -> None:
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


async def test_statement_arrives_before_its_user_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later time would hide copies of the request that other HAProcs received meanwhile."""
    now, admit = asyncio.get_running_loop().time, Admission.admit
    admitted: list[float] = []

    async def slowly(self: Admission, *args: Any) -> Admitted:
        await asyncio.sleep(0.05)
        admitted.append(now())
        return await admit(self, *args)

    monkeypatch.setattr(Admission, "admit", slowly)
    async with door(tmp_path) as rig:
        await rig.post(statement="INSERT")
    arrived_s = rig.service.requests[0].arrived_s
    assert arrived_s is not None and arrived_s <= admitted[0] - 0.05


async def test_parameter_rows_of_a_statement_become_one_insert(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rows = [[{"value": "1", "type": "INT"}], [{"value": "2", "type": "INT"}]]
        await rig.post(statement="INSERT INTO t VALUES (?)", parameter_rows=rows)
        assert len(rig.service.requests) == 1
        assert rig.service.requests[0].statement == SentSql("INSERT INTO t VALUES (1), (2)")


async def test_write_is_answered_with_offset_and_outcomes(tmp_path: Path) -> None:
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
    ("error", "status", "expected"),
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
async def test_failed_statement_is_answered_with_the_status_of_its_error(
    tmp_path: Path, error: Exception, status: int, expected: dict[str, Any]
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["BAD"] = Canned(error=error)
        answer = await rig.post(status, statement="BAD", request_id="r")
        assert answer.items() >= expected.items()
        assert answer["cluster"] == "a" and "a bug" not in answer["message"]
        async with rig.http.post(
            rig.url + STATEMENTS,
            json={"statement": "BAD", "request_id": "r"},
            headers=ARROW,
        ) as streamed:
            assert streamed.status == status
            assert (await streamed.json()).items() >= expected.items()


async def test_application_error_is_answered_with_200_and_state_failed(tmp_path: Path) -> None:
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
        assert answer["status"]["sql_state"] == "42P01"
        assert answer["status"]["error"]["outcome"] == "REJECTED"
        assert "result" not in answer
        assert await rig.get(f"{STATEMENTS}/r1") == answer
        chunk = await rig.get(f"{STATEMENTS}/r1/result/chunks/0", 422)
        assert chunk["error_class"] == "TABLE_OR_VIEW_NOT_FOUND"


async def test_statement_without_waiting_runs_on_and_is_fetched_later(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        answer = await rig.post(statement="SLOW", wait_timeout="0s", request_id="r1")
        assert answer["status"]["state"] in ("PENDING", "RUNNING")
        assert answer.keys() == {"statement_id", "status"}
        assert (await rig.get(f"{STATEMENTS}/r1"))["status"]["state"] == "RUNNING"
        await rig.get(f"{STATEMENTS}/r1/result/chunks/0", 404)
        hold.set()
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 0)
        assert (await rig.get(f"{STATEMENTS}/r1"))["result"]["data_array"] == [["1"]]


async def test_statement_is_cancelled_on_wait_timeout(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["SLOW"] = Canned(hold=asyncio.Event())
        body = {"wait_timeout": "5s", "on_wait_timeout": "CANCEL", "request_id": "r1"}
        answer = await rig.post(statement="SLOW", **body)
        assert answer["status"] == {"state": "CANCELED"}
        assert rig.service.cancelled == ["r1"]


@pytest.mark.parametrize("fate", [Fate.COMMITTED, Fate.REVOKED, Fate.UNDECIDED])
async def test_cancel_cancels_a_query_and_reports_the_fate_of_a_write(
    tmp_path: Path, fate: Fate
) -> None:
    async with door(tmp_path) as rig:
        hold, answers = asyncio.Event(), {}
        rig.service.fate = None  # the query is not in the log
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=asyncio.Event())
        rig.service.table["WRITE"] = Canned(ONE.chunks, OperationClass.ASYNCHRONOUS, hold=hold)
        for name in ("SLOW", "WRITE"):
            await rig.post(statement=name, wait_timeout="0s", request_id=name)
            got, answers[name] = await rig.ask("post", f"{STATEMENTS}/{name}/cancel")
            assert got == 200
            rig.service.fate = fate
        assert answers["SLOW"] == {"became": "canceled"}
        assert answers["WRITE"] == {"became": fate, "log_offset": 7, "message": "told"}
        assert (await rig.get(f"{STATEMENTS}/SLOW"))["status"]["state"] == "CANCELED"
        status = (await rig.get(f"{STATEMENTS}/WRITE"))["status"]
        if fate is Fate.REVOKED:
            assert (status["state"], status["error"]["error_code"]) == ("FAILED", "BAD_REQUEST")
            assert "taken back" in status["error"]["message"]
        else:
            assert status["state"] == "RUNNING"
            hold.set()
            await until(lambda: rig.service.finished == ["WRITE"])
        _, answer = await rig.ask("post", f"{STATEMENTS}/WRITE/cancel")
        assert answer["became"] == "ended"
        assert await rig.status_of("post", f"{STATEMENTS}/nothing/cancel") == 404


async def test_query_of_a_client_that_left_is_cancelled_and_a_write_goes_on(tmp_path: Path) -> None:
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
            await until(lambda: rig.app[REGISTRY].request_admission.inside == 1)
            hold.set()
            await until(lambda: rig.service.finished == ["WRITE"])
            await until(lambda: rig.app[REGISTRY].request_admission.inside == 0)
            await until(lambda: all(stream.closed.is_set() for stream in rig.service.streams))


async def test_repeated_request_attaches_to_the_first_and_runs_once(tmp_path: Path) -> None:
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


async def test_repeated_id_with_another_statement_or_delivery_is_a_conflict(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        await rig.post(statement="SELECT 1", request_id="r1")
        other = await rig.post(409, statement="SELECT 2", request_id="r1")
        assert other["error_class"] == "HAPROC_REQUEST_ID_REUSED" and other["kind"] == "refused"
        await rig.post(409, statement="SELECT 1", request_id="r1", format="ARROW_STREAM")
        body = {"statement": "SELECT 2", "request_id": "r1"}
        assert await rig.status_of("post", STATEMENTS, json=body, headers=ARROW) == 409


async def test_repeated_request_after_an_availability_error_runs_again(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        down = RequestError(FailureKind.AVAILABILITY, "down", error_class="X")
        rig.service.table["S"] = Canned(error=down)
        await rig.post(503, statement="S", request_id="r1")
        rig.service.table["S"] = ONE
        assert (await rig.post(statement="S", request_id="r1"))["status"]["state"] == "SUCCEEDED"


async def test_repeated_request_of_a_streaming_one_runs_after_it(tmp_path: Path) -> None:
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
        await until(lambda: rig.app[REGISTRY].request_admission._waiting.taken == 3)
        assert len(rig.service.requests) == 1
        hold.set()
        await asyncio.gather(first, *others)
        assert len(rig.service.requests) == 3


async def test_request_over_the_statement_limit_is_answered_429(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(statements_max=2, statement_queue_s=0)) as rig:
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
        assert await rig.app[REGISTRY].request_admission.wait_idle(WAIT_S)
        await rig.post(statement="SELECT 1")


async def test_statement_of_another_user_is_unknown(tmp_path: Path) -> None:
    users = (User("ann", "ann-token"), User("bob", "bob-token"))
    async with door(tmp_path, users=users) as rig:
        ann = {"Authorization": "Bearer ann-token"}
        bob = {"Authorization": "Bearer bob-token"}
        body = {"statement": "SELECT 1", "request_id": "r1"}
        assert await rig.status_of("post", STATEMENTS, json=body, headers=ann) == 200
        assert rig.service.requests[0].user == "ann"
        for headers, status in ((ann, 200), (bob, 404), ({}, 401)):
            assert await rig.status_of("get", f"{STATEMENTS}/r1", headers=headers) == status
        # Another one, of his own.
        assert await rig.status_of("post", STATEMENTS, json=body, headers=bob) == 200
        assert [request.user for request in rig.service.requests] == ["ann", "bob"]


async def test_large_statement_reaches_the_service(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        statement = "SELECT '" + "ü" * 100_000 + "'"
        await rig.post(statement=statement)
        assert rig.service.requests[0].statement == SentSql(statement)


async def test_door_closed_during_a_statement_still_sends_its_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(ONE.chunks, hold=hold)
        await rig.post(statement="SELECT 1")  # leaves an idle keep-alive connection
        port = rig.listener.port
        running = asyncio.create_task(rig.post(statement="SLOW"))
        await asyncio.wait_for(rig.service.started.wait(), WAIT_S)
        await until(lambda: rig.app[REGISTRY].request_admission.inside == 1)
        await rig.listener.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await rig.http.get(f"http://127.0.0.1:{port}/healthz")
        hold.set()
        assert (await running)["result"]["data_array"] == [["1"]]
        await rig.listener.open()
        await rig.post(statement="SELECT 1")


def test_rig_is_a_service() -> None:
    """The test doubles have the interfaces that the doors call."""
    from haproc.doors.operators.peers import PeerService
    from haproc.doors.status import StatusSource
    from haproc.route.model import Service
    from tests.unit.canned import CannedPeers, CannedService, CannedStatus

    service: Service = CannedService()
    status: StatusSource = CannedStatus()
    peers: PeerService = CannedPeers()
    assert service and status and peers


async def test_failed_statement_is_kept_without_traceback_and_causes(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        cause = ValueError("why")
        for kind, status in ((FailureKind.REFUSED, 400), (FailureKind.APPLICATION, 200)):
            error = RequestError(kind, "no", error_class="X")
            error.__cause__ = cause
            rig.service.table["BAD"] = Canned(error=error)
            await rig.post(status, statement="BAD", request_id=kind.value)
            await rig.get(f"{STATEMENTS}/{kind.value}", status)
            kept_error = rig.app[REGISTRY].find(kind.value, "anonymous").error
            assert kept_error is not None and kept_error.error_class == "X"
            assert (kept_error.__traceback__, kept_error.__cause__, kept_error.__context__) == (
                None,
                None,
                None,
            )
