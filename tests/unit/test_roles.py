"""Tests that HTTP routes and Spark Connect calls refuse requests with insufficient rights."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from haproc import cli, protos
from haproc.classify.rights import Role
from haproc.config.sections import User, digest_of
from haproc.doors import roles
from haproc.doors.http.access import Access
from haproc.engine.rewriting import RPCS
from tests.unit.door_rig import CannedWatched, Rig, door, make_config
from tests.unit.test_connect_calls import SESSION, Context, boundary_of
from tests.unit.test_oidc import OIDC, Provider, by_hand, signed
from tests.unit.test_openapi import BETWEEN_PEERS, routes

USERS = (
    User("read", token_hash=digest_of("reads"), roles=(Role.READER,)),
    User("write", "writes-all", roles=(Role.WRITER,)),
    User("run", "operates", roles=(Role.OPERATOR,)),
)
TOKEN_OF = {Role.READER: "reads", Role.WRITER: "writes-all", Role.OPERATOR: "operates"}
SECRET = "ring-secret"
LISTS = {
    False: (roles.OPEN_TO_CLIENTS, roles.READERS, roles.WRITERS),
    True: (roles.OPEN_TO_OPERATORS, roles.OPERATORS, {path for _, path in BETWEEN_PEERS}),
}
EXPIRED = signed(exp=1)
"""A provider's token that is no longer valid; one without signature; one for another audience."""
UNSIGNED, FOREIGN = by_hand({"alg": "none", "kid": "r1"}), signed(aud="another")
HINT = re.compile("token|operator|secret")


def access_to(tmp_path: Path) -> Access:
    """Return the access of the doors: users of the configuration, and those of a provider."""
    return Access(replace(make_config(tmp_path, users=USERS), oidc=OIDC), Provider().users)


async def status_of(rig: Rig, method: str, path: str, token: str | None) -> int:
    """Return the status of a request without a body; check that a refusal has a hint."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = rig.url + re.sub(r"\{\w+\}", "1", path)
    async with rig.http.request(method, url, headers=headers) as response:
        if response.status in (401, 403):
            answer = await response.json()
            expected = {401: "HAPROC_UNAUTHENTICATED", 403: "HAPROC_FORBIDDEN"}
            assert answer["error_class"] == expected[response.status]
            assert HINT.search(answer["hint"]) and (token or "reads") not in str(answer)
        return response.status


def weaker(role: Role) -> Iterator[str]:
    """Yield the tokens that the routes of a role refuse."""
    for other, token in TOKEN_OF.items():
        reads = role is Role.READER and other is Role.WRITER
        if other is not role and not reads:
            yield token


@pytest.mark.parametrize("operators", [False, True])
async def test_route_is_in_exactly_one_list_of_roles(tmp_path: Path, operators: bool) -> None:
    async with door(tmp_path, operator=operators, watched=CannedWatched()) as rig:
        served = {path for _, path in routes(rig.app)}
    lists = LISTS[operators]
    assert set().union(*lists) == served
    assert sum(map(len, lists)) == len(served)


@pytest.mark.parametrize("operators", [False, True])
async def test_route_refuses_unknown_tokens_and_insufficient_roles(
    tmp_path: Path, operators: bool
) -> None:
    access = access_to(tmp_path)
    async with door(tmp_path, operator=operators, watched=CannedWatched(), access=access) as rig:
        for method, path in sorted(routes(rig.app)):
            role = roles.needed(path, operators=operators, token=False)
            if role is None:
                assert await status_of(rig, method, path, None) not in (401, 403), path
                continue
            for token in (None, "wrong", EXPIRED, UNSIGNED, FOREIGN):
                assert await status_of(rig, method, path, token) == 401, (path, token)
            for token in weaker(role):
                assert await status_of(rig, method, path, token) == 403, (path, token)
            if not operators:  # the ring's secret is no user's
                assert await status_of(rig, method, path, SECRET) == 401, path


@pytest.mark.parametrize("operators", [False, True])
async def test_route_accepts_its_role(tmp_path: Path, operators: bool) -> None:
    async with door(tmp_path, users=USERS, operator=operators, watched=CannedWatched()) as rig:
        for method, path in sorted(routes(rig.app)):
            role = roles.needed(path, operators=operators, token=True)
            archive = path in ("/api/ha/verify", "/api/ha/verify/{offset}") or "operations" in path
            if role is None or archive or path == roles.EVENTS:
                continue
            token = SECRET if role is Role.PEER else TOKEN_OF[role]
            assert await status_of(rig, method, path, token) not in (401, 403), path


def test_route_that_is_in_no_list_is_for_peers_only() -> None:
    for operators in (False, True):
        needed = roles.needed("/new", operators=operators, token=True)
        assert needed is Role.PEER


def test_commands_use_only_routes_of_operators() -> None:
    """Otherwise operators with their own token could not await a rebuild, a repair or a restore."""
    texts = "".join(each.read_text() for each in Path(cli.__file__).parent.glob("*.py"))
    used = [each.split("/") for each in set(re.findall(r"\"(/ha/v1/[^\"?]+)", texts))]
    allowed = [path.split("/") for path in roles.OPERATORS]
    assert len(used) > 10
    for path in used:
        alike = [
            each
            for each in allowed
            if len(each) == len(path)
            and all(a == b or "{" in b for a, b in zip(each, path, strict=True))
        ]
        assert alike, path


async def test_operator_is_refused_on_peer_routes_and_the_rings_secret_opens_both(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, users=USERS, operator=True) as rig:
        assert await status_of(rig, "GET", "/ha/v1/queue", "operates") == 200
        assert await status_of(rig, "GET", "/ha/v1/latencies", "operates") == 403
        assert await status_of(rig, "GET", "/ha/v1/queue", SECRET) == 200
        # It lacks a parameter.
        assert await status_of(rig, "GET", "/ha/v1/latencies", SECRET) == 400


# -- Spark Connect -------------------------------------------------------------------------------


async def test_connect_call_has_the_user_of_its_token_also_if_it_names_another_user(
    tmp_path: Path,
) -> None:
    boundary = boundary_of(tmp_path, access_to(tmp_path))
    calls: list[Any] = []

    async def handle(call: Any, request: bytes) -> bytes:
        calls.append(call)
        return b""

    claimed_user = protos.base.UserContext(user_id="write", user_name="write")
    request = protos.base.GetStatusRequest(session_id=SESSION, user_context=claimed_user)
    await boundary.unary("GetStatus", handle).unary_unary(
        request.SerializeToString(), Context("reads")
    )
    (call,) = calls
    assert (call.user, call.names.server_id, call.rights.roles) == ("read", "read", (Role.READER,))


@pytest.mark.parametrize("rpc", sorted(RPCS))
@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED, "HAPROC_UNAUTHENTICATED"),
        ("wrong", grpc.StatusCode.UNAUTHENTICATED, "HAPROC_UNAUTHENTICATED"),
        (EXPIRED, grpc.StatusCode.UNAUTHENTICATED, "it has expired"),
        (UNSIGNED, grpc.StatusCode.UNAUTHENTICATED, "HAPROC_UNAUTHENTICATED"),
        (SECRET, grpc.StatusCode.UNAUTHENTICATED, "HAPROC_UNAUTHENTICATED"),
        ("operates", grpc.StatusCode.PERMISSION_DENIED, "HAPROC_FORBIDDEN"),
    ],
)
async def test_spark_connect_call_refuses_insufficient_tokens(
    tmp_path: Path,
    rpc: str,
    token: str | None,
    code: grpc.StatusCode,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "haproc.audit")
    boundary = boundary_of(tmp_path, access_to(tmp_path))

    async def handle(call: Any, request: bytes, *more: Any) -> bytes:
        pytest.fail("it was let in")

    request = protos.base.GetStatusRequest(session_id=SESSION).SerializeToString()
    context = Context(token)
    with pytest.raises(grpc.aio.AbortError):
        await boundary.unary(rpc, handle).unary_unary(request, context)
    assert context.code is code and reason in context.message
    (line,) = (record.getMessage() for record in caplog.records if record.name == "haproc.audit")
    assert '"address": "::1"' in line and f'"request": "{rpc}"' in line and "wrong" not in line
