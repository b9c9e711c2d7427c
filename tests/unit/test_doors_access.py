"""Access to the doors; hostile or broken requests get a JSON answer, never a bare 500."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haproc.config.sections import Limits, User
from haproc.doors.clients.statement_request import FIELDS, read_statement
from haproc.doors.http.access import Access
from haproc.doors.status import Readiness
from haproc.failure import RequestError
from haproc.route.model import SentSql
from tests.unit.canned import ONE, Canned
from tests.unit.door_rig import ARROW, STATEMENTS, Rig, door, make_config

PATHS = ["/healthz", "/readyz", "/clusterStatus", "/metrics", "/openapi.json"]
USERS = (User("ann", "ann-token"), User("bob", "bob-token"))
ERROR_FIELDS = {
    "error_code",
    "message",
    "error_class",
    "sqlstate",
    "kind",
    "outcome",
    "hint",
    "cluster",
    "log_offset",
    "statement_id",
}


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic ann-token", "ann-token", "Bearer ann"],
)
async def test_request_without_a_token_of_a_user_is_answered_401(
    tmp_path: Path, header: str | None
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        headers = {} if header is None else {"Authorization": header}
        for path in [*PATHS, f"{STATEMENTS}/x", "/no/such/path"]:
            async with rig.http.get(rig.url + path, headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert (await response.json()).keys() == ERROR_FIELDS


async def test_request_with_a_token_of_a_user_is_accepted(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS) as rig:
        for token in ("Bearer bob-token", "bearer  bob-token"):
            assert await rig.status_of("get", "/healthz", headers={"Authorization": token}) == 200


async def test_answer_of_a_haproc_out_of_service_has_its_state_in_a_header(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["SELECT 2"] = Canned(ONE.chunks, columns=ONE.columns, hold=hold)
        body = {"statement": "SELECT 2"}
        async with rig.http.get(rig.url + "/healthz") as response:
            assert "HAProc-State" not in response.headers
        running = asyncio.create_task(
            rig.http.post(rig.url + STATEMENTS, json=body, headers=ARROW).__aenter__()
        )
        await asyncio.wait_for(rig.service.started.wait(), 10)
        rig.status.ready = Readiness(False, "DRAINING")
        hold.set()
        response = await running
        assert (response.status, response.headers["HAProc-State"]) == (200, "DRAINING")
        assert response.headers["Connection"] == "close"
        await response.read()


async def test_admission_returns_the_owner_of_the_token(tmp_path: Path) -> None:
    admission = Access(make_config(tmp_path, users=USERS)).clients()
    assert (await admission.admit({"Authorization": "Bearer bob-token"})).user == "bob"
    with pytest.raises(RequestError):
        await admission.admit({"Authorization": "Bearer \udcff"})


async def test_operator_door_has_open_health_paths_and_requires_the_secret_for_peers(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, users=USERS, operator=True) as rig:
        for path in PATHS:
            assert await rig.status_of("get", path) == 200
        body = {"offset": 1, "operation_id": "x", "timeout_s": 1}
        for token, status in (("ann-token", 403), ("wrong", 401), ("ring-secret", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/ha/v1/status", "/ha/v1/outcomes/3"):
                assert await rig.status_of("get", path, headers=headers) == status
            assert await rig.status_of("post", "/ha/v1/apply", json=body, headers=headers) == status
        assert await rig.status_of("post", STATEMENTS, json={}) == 404


async def test_readyz_shows_the_state(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        assert await rig.get("/readyz") == {"state": "READY", "reason": "", "drained": False}
        rig.status.ready = Readiness(False, "DOWN", "refused")
        expected = {"state": "DOWN", "reason": "refused", "drained": False}
        assert await rig.get("/readyz", 503) == expected


async def test_metrics_contain_requests_by_class_and_outcome_and_the_gauges(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        await rig.post(statement="SELECT 1")
        rig.metrics.position(118, 120, 2)
        rig.metrics.state("DOWN")
        rig.metrics.applied("applied", 5)
        rig.metrics.peer("b", True, False, True, 3)
        rig.metrics.recovery(1, 2)
        rig.metrics.sessions(4, 9, 2)
        async with rig.http.get(rig.url + "/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
        for line in (
            'haproc_requests_total{operation_class="query",outcome="ok"} 1.0',
            "haproc_lag_records 2.0",
            'haproc_state{state="DOWN"} 1.0',
            'haproc_state{state="READY"} 0.0',
            'haproc_operations_applied_total{outcome="applied"} 5.0',
            'haproc_peer_alive{peer="b"} 1.0',
            'haproc_peer_direct{peer="b"} 0.0',
            'haproc_peer_in_sync{peer="b"} 1.0',
            'haproc_peer_lag_records{peer="b"} 3.0',
            "haproc_sessions 4.0",
            "haproc_sessions_of_ring 9.0",
            "haproc_sessions_adopted_total 2.0",
            "haproc_results_kept 1.0",
        ):
            assert line in text, line


@pytest.mark.parametrize(("field", "afresh"), [("begin_with", False), ("statements", True)])
async def test_session_is_opened_and_closed(tmp_path: Path, field: str, afresh: bool) -> None:
    async with door(tmp_path) as rig:
        path = "/api/ha/sessions/s1"
        _, answer = await rig.ask("put", path, json={field: ["USE sales"]})
        assert answer == {
            "catalog": "spark_catalog",
            "schema": "default",
            "time_zone": "UTC",
            "cluster": "a",
        }
        assert rig.service.sessions == {"s1": ("anonymous", ("USE sales",), afresh)}
        assert await rig.ask("delete", path) == (200, {})
        assert rig.service.sessions == {}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("s1", {"statements": "USE x"}, "statements must be a list"),
        ("s1", {"statements": {}}, "statements must be a list"),
        ("s1", {"statements": [1]}, "statements[0] must be a string"),
        ("s1", {"begin_with": "USE x"}, "begin_with must be a list"),
        ("s1", {"begin_with": [], "statements": []}, "not both"),
        ("s1", {"statement": []}, "unknown field 'statement'"),
        ("a b", {}, "the session's id"),
        ("x" * 129, {}, "the session's id"),
    ],
)
async def test_session_with_a_wrong_body_is_refused(
    tmp_path: Path, path: str, body: dict[str, Any], reason: str
) -> None:
    async with door(tmp_path) as rig:
        got, answer = await rig.ask("put", f"/api/ha/sessions/{path}", json=body)
        assert got == 400
        assert reason in answer["message"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("statment", "x", "did you mean statement"),
        ("statement", None, "missing or empty"),
        ("statement", "  ", "missing or empty"),
        ("statement", 5, "statement must be a string, not a number"),
        ("statement", "\ud800", "surrogate"),
        ("wait_timeout", "1s", "wait_timeout must be"),
        ("wait_timeout", "51s", "wait_timeout must be"),
        ("wait_timeout", "\u0665s", "wait_timeout must be"),
        ("query_tags", [{"key": "request_id", "value": v} for v in "ab"], "several request_id"),
        ("wait_timeout", 5, "wait_timeout must be a string"),
        ("on_wait_timeout", "STOP", "known values: CONTINUE, CANCEL"),
        ("row_limit", 0, "row_limit must be at least 1"),
        ("row_limit", True, "row_limit must be a whole number, not a boolean"),
        ("byte_limit", 1.5, "byte_limit must be a whole number"),
        ("byte_limit", 2**63, "2^63"),
        ("format", "CSV", "known values: JSON_ARRAY, ARROW_STREAM"),
        ("disposition", "inline", "known values: INLINE"),
        ("request_id", "", "request_id must be 1 to 128"),
        ("request_id", "x" * 129, "request_id must be 1 to 128"),
        ("request_id", "a\n", "request_id must be 1 to 128"),
        ("session_id", "a/b", "session_id must be"),
        ("consistency", "strong", "known values: any"),
        ("operation_class", "session", "known values: query, asynchronous"),
        ("fanout", "both", "known values: serial, parallel"),
        ("write_concern", "most", "known values: one, majority, all"),
        ("timeout_s", 0, "timeout_s must be above 0"),
        ("timeout_s", "5", "timeout_s must be a number"),
        ("timeout_s", 1e9, "at most 86400"),
        ("catalog", "", "catalog must not be empty"),
        ("warehouse_id", 7, "warehouse_id must be a string"),
        ("parameters", {"a": 1}, "parameters"),
        ("parameters", [{"name": "x", "value": 1}], "parameter"),
        ("parameter_rows", [], "at least one list"),
        ("parameter_rows", "x", "at least one list"),
    ],
)
async def test_statement_with_a_wrong_field_is_refused_with_its_name(
    tmp_path: Path, field: str, value: Any, reason: str
) -> None:
    async with door(tmp_path) as rig:
        answer = await rig.post(400, **{"statement": "SELECT :x", field: value})
        assert answer.keys() == ERROR_FIELDS
        assert reason in f"{answer['message']} {answer['hint']}"
        assert not rig.service.requests


@pytest.mark.parametrize(
    ("data", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"statement": NaN}', "application/json", 400),
        (b'{"statement": "\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"row_limit": ' + b"9" * 10_000 + b"}", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"x" * (3 << 20), "application/json", 413),
    ],
)
async def test_statement_with_a_malformed_body_is_answered_as_json(
    tmp_path: Path, data: bytes, content_type: str, status: int
) -> None:
    async with door(tmp_path, limits=Limits(operation_bytes_max=1 << 20)) as rig:

        async def parts() -> Any:
            yield data

        for body in (data if len(data) < 1 << 20 else parts(), parts()):
            got, answer = await rig.ask(
                "post", STATEMENTS, data=body, headers={"Content-Type": content_type}
            )
            assert got == status
            assert answer.keys() == ERROR_FIELDS


async def test_number_of_too_many_digits_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        data = b'{"row_limit": ' + b"9" * 100_000 + b"}"
        headers = {"Content-Type": "application/json"}
        got, answer = await rig.ask("post", STATEMENTS, data=data, headers=headers)
        assert (got, answer["error_class"]) == (400, "HAPROC_BAD_REQUEST")
        assert answer["message"] == "a number in the body has more than 4300 digits"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"statement": "SELECT 1", "statement": "SELECT 1"}', "statement"),
        (b'{"statement": "SELECT 1", "\\u0073tatement": "SELECT 2"}', "statement"),
        (b'{"statement": "SELECT 1", "seen": {"b": 1, "a": 1, "b": 2}}', "b"),
        (b'{"statement": "SELECT 1", "x": 1, "x": 2}', "x"),
    ],
)
async def test_statement_with_a_repeated_field_is_refused(
    tmp_path: Path, data: bytes, name: str
) -> None:
    async with door(tmp_path) as rig:
        headers = {"Content-Type": "application/json"}
        got, answer = await rig.ask("post", STATEMENTS, data=data, headers=headers)
        assert (got, answer["error_class"]) == (400, "HAPROC_BAD_REQUEST")
        assert answer["message"] == f"'{name}' comes twice in one object"
        assert not rig.service.requests


@pytest.mark.parametrize("operator", [False, True])
async def test_request_with_two_tokens_is_refused(tmp_path: Path, operator: bool) -> None:
    async with door(tmp_path, users=USERS, operator=operator) as rig:
        tokens = ("ring-secret", "x") if operator else ("ann-token", "bob-token")
        headers = [("Authorization", f"Bearer {token}") for token in tokens]
        path = "/ha/v1/status" if operator else f"{STATEMENTS}/x"
        got, answer = await rig.ask("get", path, headers=headers)
        assert got == 401
        assert "several" in answer["message"]


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "HAProc-Consistency", "HAProc-Write-Concern", "Content-Encoding"]
)
async def test_statement_with_a_repeated_header_is_refused(tmp_path: Path, name: str) -> None:
    async with door(tmp_path) as rig:
        headers = [("Content-Type", "application/json"), (name, "one"), (name, "two")]
        data = b'{"statement": "SELECT 1"}'
        got, answer = await rig.ask("post", STATEMENTS, data=data, headers=headers)
        assert got == 400
        assert answer["message"] == f"there are several headers {name}"
        assert not rig.service.requests


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "gzip;q=1", "x"])
async def test_statement_with_an_unsupported_encoding_is_refused(
    tmp_path: Path, encoding: str
) -> None:
    async with door(tmp_path) as rig:
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        data = b'{"statement": "SELECT 1"}'
        got, answer = await rig.ask("post", STATEMENTS, data=data, headers=headers)
        assert got == 415
        assert answer["error_class"] == "HAPROC_CONTENT_TYPE"
        assert not rig.service.requests


async def test_missing_token_and_wrong_token_have_different_messages(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        answers = {}
        for given in ("", "Bearer wrong"):
            headers = {"Authorization": given} if given else {}
            _, answers[given] = await rig.ask("get", "/healthz", headers=headers)
        assert "is needed" in answers[""]["message"]
        assert "is not the token of a user" in answers["Bearer wrong"]["message"]
        for answer in answers.values():
            assert "--token-file" in answer["hint"] and "wrong" not in str(answer)


async def test_answer_to_a_wrong_method_lists_the_allowed_ones(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for path, allowed in ((STATEMENTS, "POST"), ("/api/ha/sessions/s", "DELETE, PUT")):
            async with rig.http.get(rig.url + path) as response:
                assert (response.status, response.headers["Allow"]) == (405, allowed)


async def test_unknown_path_or_method_is_answered_as_json(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        assert (await rig.get("/nothing", 404))["error_class"] == "HAPROC_NOT_FOUND"
        assert (await rig.get(STATEMENTS, 405))["error_class"] == "HAPROC_METHOD_NOT_ALLOWED"


async def test_slow_body_is_ended_by_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.doors.http.bodies.BODY_READ_S", 0.1)
    async with door(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
        writer.write(
            f"POST {STATEMENTS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert b" 408 " in head.splitlines()[0]
        writer.close()


async def test_unexpected_error_is_logged_with_the_reference_of_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["BUG"] = Canned(error=KeyError("secret detail"))
        with caplog.at_level(logging.ERROR):
            answer = await rig.post(503, statement="BUG", request_id="r")
        reference = answer["message"].rsplit(" ", 1)[-1]
        assert any(reference in record.getMessage() for record in caplog.records)
        assert "secret detail" not in json.dumps(answer)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_BODIES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), _JSON, max_size=6).map(
    lambda body: json.dumps({"statement": "SELECT 1", **body}).encode()
)


@given(st.binary(max_size=100) | _BODIES)
def test_read_statement_of_any_body_gives_a_request_or_a_refusal(body: bytes) -> None:
    try:
        parsed = read_statement(body, user="u", made_id="made", timeout_default_s=1.0)
    except RequestError as error:
        assert error.kind == "refused" and error.message
    else:
        assert isinstance(parsed.request.statement, SentSql)
        assert parsed.request.statement.text.strip() and parsed.request.timeout_s > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_request_is_answered_with_json(tmp_path: Path, data: st.DataObject) -> None:
    requests = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]),
                st.sampled_from(
                    [
                        STATEMENTS,
                        f"{STATEMENTS}/%00",
                        f"{STATEMENTS}/x/result/chunks/-1",
                        f"{STATEMENTS}/x/result/chunks/%F0%9F%98%80",
                        "/api/ha/tables/%2e%2e/rows",
                        "/api/ha/sessions/%0d%0a",
                        "/api/ha/results/x/9999999999999",
                        "/readyz?x=%ff",
                    ]
                ),
                st.binary(max_size=50) | _BODIES,
                st.sampled_from(["application/json", "text/plain", "", "a/b/c;;=", "*/*"]),
            ),
            max_size=4,
        )
    )

    async def run() -> None:
        async with door(tmp_path) as rig:
            for method, path, body, content_type in requests:
                await ask(rig, method, path, body, content_type)

    asyncio.run(run())


async def ask(rig: Rig, method: str, path: str, body: bytes, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    async with rig.http.request(method, rig.url + path, data=body, headers=headers) as response:
        answer = await response.read()
        assert response.status < 500 or response.status == 503, answer
        if method != "HEAD":
            json.loads(answer)


async def test_accept_header_with_the_stream_type_among_others_gets_a_stream(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        headers = {"Accept": f"{ARROW['Accept']}, application/json;q=0.5"}
        body = {"statement": "SELECT 1"}
        async with rig.http.post(rig.url + STATEMENTS, json=body, headers=headers) as response:
            assert response.content_type == ARROW["Accept"]


async def test_closing_door_ends_idle_connections_at_once(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
        fresh, unused = await asyncio.open_connection("127.0.0.1", rig.listener.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b'"ok"' in await asyncio.wait_for(reader.readuntil(b"}"), 10)
        await rig.listener.close()
        for ended in (reader, fresh):
            assert await asyncio.wait_for(ended.read(), 10) == b""
        writer.close()
        unused.close()


async def test_closing_door_waits_for_a_body_that_is_arriving(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
        body = json.dumps({"statement": "SELECT 1"}).encode()
        head = f"POST {STATEMENTS} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:5])
        await writer.drain()
        server = rig.listener._runner.server
        assert server is not None
        async with asyncio.timeout(10):
            while not any(each._request_in_progress for each in server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await rig.listener.close()
        writer.write(body[5:])
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer
        writer.close()
