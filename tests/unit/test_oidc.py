"""Tests of the tokens of an OpenID Connect provider: the checks, and the fetching of keys."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from haproc.classify.rights import Rights, Role
from haproc.config.load import load
from haproc.config.sections import OWN_NAMES, Grant, Oidc, User, check_oidc, check_users
from haproc.doors.http.access import ANONYMOUS, Access, Admitted
from haproc.doors.http.oidc import AGAIN_S, FetchError, OidcUsers, fetch_json, values_in
from haproc.failure import RequestError
from haproc.route.optimizing import USER
from tests.unit.door_rig import STATEMENTS, door, make_config
from tests.unit.test_users import ANN, write

ISSUER = "https://login.example.com/realm"
GRANTS = (
    Grant("admins", (Role.OPERATOR, Role.WRITER)),
    Grant("sales", (Role.WRITER,), ("Spark_Catalog.Sales.*",)),
    Grant("everybody", (Role.READER,)),
)
OIDC = Oidc(ISSUER, "ring-demo", algorithms=("RS256", "ES256"), grants=GRANTS)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def public(key: Any, key_id: str, **more: str) -> dict[str, Any]:
    """Return a key as the provider publishes it."""
    kind = jwt.algorithms.ECAlgorithm if key is EC else jwt.algorithms.RSAAlgorithm
    found: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return {**found, "kid": key_id, "use": "sig", **more}


KEYS = [public(RSA, "r1", alg="RS256"), public(EC, "e1", alg="ES256")]


def claims(**changes: Any) -> dict[str, Any]:
    """Return acceptable claims with these changes; None leaves a claim out."""
    now = int(time.time())
    usual = {
        "iss": ISSUER,
        "aud": "ring-demo",
        "sub": "ann@example.com",
        "iat": now,
        "exp": now + 60,
        "roles": ["sales"],
    }
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def signed(
    key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "r1", **changes: Any
) -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def by_hand(head: Mapping[str, Any], secret: bytes = b"") -> str:
    """Return a token that PyJWT would not make, signed with a shared secret or not at all."""
    parts = [json.dumps(each).encode() for each in (head, claims())]
    text = b".".join(base64.urlsafe_b64encode(each).rstrip(b"=") for each in parts)
    mark = hmac.digest(secret, text, hashlib.sha256) if secret else b""
    return (text + b"." + base64.urlsafe_b64encode(mark).rstrip(b"=")).decode()


class Provider:
    """The provider, on a clock that the test sets."""

    def __init__(self, settings: Oidc = OIDC) -> None:
        self.keys: list[dict[str, Any]] = list(KEYS)
        self.issuer, self.jwks_url = ISSUER, f"{ISSUER}/keys"
        self.fetched: list[str] = []
        self.away = False
        self.now_s = 0.0
        self.users = OidcUsers(settings, lambda: self.now_s, self.fetch)

    async def fetch(self, url: str) -> Mapping[str, Any]:
        self.fetched.append(url)
        await asyncio.sleep(0)
        if self.away:
            raise FetchError(f"{url} is away")
        if url.endswith("configuration"):
            return {"issuer": self.issuer, "jwks_uri": self.jwks_url}
        return {"keys": self.keys}

    async def error(self, token: str) -> RequestError:
        with pytest.raises(RequestError) as raised:
            await self.users.user_of(token)
        assert token not in f"{raised.value.message} {raised.value.hint}"
        return raised.value


# -- a token -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (lambda: signed(), "ann@example.com"),
        (lambda: signed(EC, "ES256", "e1"), "ann@example.com"),
        (lambda: signed(sub="00u1|x:y"), "00u1|x:y"),
        (lambda: signed(aud=["other", "ring-demo"]), "ann@example.com"),
        (lambda: signed(exp=int(time.time()) - 10), "ann@example.com"),  # clocks differ
    ],
)
async def test_valid_token_gives_the_user_and_its_rights(
    token: Callable[[], str], user: str
) -> None:
    rights = Rights((Role.WRITER,), ("spark_catalog.sales.*",))
    assert await Provider().users.user_of(token()) == (user, rights)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (lambda: signed(exp=int(time.time()) - 3600), "it has expired"),
        (lambda: signed(exp=None), "it lacks a claim"),
        (lambda: signed(nbf=int(time.time()) + 3600), "it is not valid yet"),
        (lambda: signed(iat=int(time.time()) + 3600), "not valid yet"),
        (lambda: signed(aud="another"), "another audience"),
        (lambda: signed(aud=None), "it lacks a claim"),
        (lambda: signed(iss="https://evil.example.com"), "another issuer"),
        (lambda: signed(iss=None), "it lacks a claim"),
        (lambda: signed(OTHER), "its signature is wrong"),
        (lambda: signed(key_id="unknown"), "no such key"),
        (lambda: signed(key_id=None), "no such key"),  # one of two
        (lambda: signed(EC, "ES256", "r1"), "not that of its key"),
        (lambda: signed(RSA, "RS512"), "its algorithm is not"),
        (lambda: by_hand({"alg": "none", "kid": "r1"}), "its algorithm is not"),
        (lambda: by_hand({"alg": "HS256", "kid": "r1"}, PEM), "its algorithm is not"),
        (lambda: signed()[:-4] + "AAAA", "its signature is wrong"),
        (lambda: signed(sub=None), "it lacks a claim"),
        (lambda: signed(sub="a/b"), "is no name"),
        (lambda: signed(sub="x" * 129), "is no name"),
        (lambda: "eyJ.e30.x", "it cannot be read"),
    ],
)
async def test_invalid_token_is_refused_with_the_reason(
    token: Callable[[], str], reason: str
) -> None:
    error = await Provider().error(token())
    assert error.error_class == "HAPROC_UNAUTHENTICATED"
    assert reason in error.message


async def test_algorithms_with_shared_secrets_are_refused_in_a_configuration() -> None:
    for name in ("HS256", "none", "x"):
        found = dict(check_oidc(replace(OIDC, algorithms=(name,))))
        assert found.keys() == {"oidc.algorithms"}


# -- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "found"),
    [
        (["everybody", "sales"], GRANTS[1].rights),  # the first grant of the configuration
        ("everybody other", Rights((Role.READER,))),
        (["admins"], Rights((Role.OPERATOR, Role.WRITER))),
    ],
)
async def test_first_grant_whose_value_the_token_has_determines_the_rights(
    roles: Any, found: Rights
) -> None:
    assert (await Provider().users.user_of(signed(roles=roles)))[1] == found


@pytest.mark.parametrize("roles", [None, [], ["other"], {"sales": 1}, 7, ["sales x", ["sales"]]])
async def test_token_without_the_value_of_any_grant_is_forbidden(roles: Any) -> None:
    error = await Provider().error(signed(roles=roles))
    assert (error.error_class, "oidc.grants" in error.hint) == ("HAPROC_FORBIDDEN", True)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"realm_access": {"roles": ["a", "b"]}}, "realm_access.roles"),
        ({"https://x.com/roles": "a b"}, "https://x.com/roles"),
    ],
)
def test_claim_of_roles_may_be_inside_an_object(given: dict[str, Any], path: str) -> None:
    assert values_in(given, path) == {"a", "b"}
    assert values_in(given, "realm_access.roles.more") == frozenset()


# -- keys ----------------------------------------------------------------------------------------


async def test_keys_are_discovered_at_the_provider_and_fetched_once() -> None:
    provider = Provider()
    await asyncio.gather(*(provider.users.user_of(signed()) for _ in range(20)))
    assert provider.fetched == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


async def test_new_key_is_fetched_at_once_but_unknown_keys_are_not_fetched_repeatedly() -> None:
    provider = Provider(replace(OIDC, jwks_url="https://login.example.com/k"))
    await provider.users.user_of(signed())
    provider.keys = [public(OTHER, "r2")]
    provider.now_s = AGAIN_S
    assert (await provider.users.user_of(signed(OTHER, key_id="r2")))[0] == "ann@example.com"
    assert len(provider.fetched) == 2
    for number in range(100):  # keys that somebody made up
        await provider.error(signed(OTHER, key_id=f"made up {number}"))
    assert len(provider.fetched) == 2
    assert "no such key" in (await provider.error(signed())).message  # the old one was withdrawn


async def test_known_keys_are_used_while_the_provider_is_away() -> None:
    provider = Provider()
    await provider.users.user_of(signed())
    provider.away, provider.now_s = True, 10 * OIDC.keys_kept_s
    for _ in range(10):
        await provider.users.user_of(signed())
        await asyncio.sleep(0.001)
    assert len(provider.fetched) == 3


async def test_old_keys_are_fetched_again_without_delaying_a_request() -> None:
    provider = Provider()
    await provider.users.user_of(signed())
    provider.keys, provider.now_s = [public(OTHER, "r1")], OIDC.keys_kept_s
    await provider.users.user_of(signed())
    async with asyncio.timeout(5):
        while len(provider.fetched) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert "signature" in (await provider.error(signed())).message


async def test_client_that_disconnects_cancels_no_fetch_of_keys() -> None:
    provider = Provider()
    asking = asyncio.create_task(provider.users.user_of(signed(key_id="unknown")))
    while not provider.fetched:  # noqa: ASYNC110
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert (await provider.users.user_of(signed()))[0] == "ann@example.com"


async def test_withdrawn_key_is_refused_after_a_long_time_without_requests() -> None:
    provider = Provider()
    await provider.users.user_of(signed())
    provider.keys = [key for key in KEYS if key["kid"] != "r1"]
    provider.now_s = 3 * OIDC.keys_kept_s
    assert "no such key" in (await provider.error(signed())).message


async def test_provider_that_was_never_reached_gives_an_availability_error() -> None:
    provider = Provider()
    provider.away = True
    error = await provider.error(signed())
    assert (error.kind, error.error_class) == ("availability", "HAPROC_PROVIDER_AWAY")
    provider.away, provider.now_s = False, AGAIN_S
    await provider.users.user_of(signed())


async def test_discovery_document_of_another_issuer_is_refused() -> None:
    provider = Provider()
    provider.issuer = "https://evil.example.com"
    assert "another issuer" in (await provider.error(signed())).message


async def test_keys_that_are_no_public_keys_are_ignored() -> None:
    provider = Provider()
    shared = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(PEM).decode()}
    provider.keys = [shared, {"kty": "RSA", "kid": "broken"}, *KEYS]
    await provider.users.user_of(signed())
    assert "algorithm" in (await provider.error(by_hand({"alg": "HS256", "kid": "s"}, PEM))).message


async def test_keys_over_http_from_another_host_are_refused() -> None:
    with pytest.raises(FetchError, match="no https URL"):
        await fetch_json("http://login.example.com/keys")


@contextlib.asynccontextmanager
async def served(
    answers: Callable[[web.BaseRequest], Awaitable[web.Response]],
) -> AsyncIterator[str]:
    """Serve on loopback; yield the URL."""
    runner = web.ServerRunner(web.Server(answers))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_configured_provider_is_queried_over_http(tmp_path: Path) -> None:
    async def answers(request: web.BaseRequest) -> web.Response:
        issuer = f"http://{request.host}"
        about = {"issuer": issuer, "jwks_uri": f"{issuer}/keys"}
        return web.json_response({"keys": KEYS} if request.path == "/keys" else about)

    async with served(answers) as issuer:
        config = replace(make_config(tmp_path), oidc=replace(OIDC, issuer=issuer))
        admission = Access(config).clients()
        headers = {"Authorization": f"Bearer {signed(iss=issuer)}"}
        found = Admitted("ann@example.com", GRANTS[1].rights, issued=True)
        assert await admission.admit(headers) == found


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.json_response({"keys": KEYS}), ""),
        (web.json_response({}, status=500), "answers 500"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "answers 302"),
        (web.Response(text="[]"), "no JSON object"),
        (web.Response(text="{" * 100_000), "no JSON object"),
        (web.Response(body=b"1" * (2 << 20)), "no JSON object"),
    ],
)
async def test_fetch_json_returns_a_json_object_or_raises_a_fetch_error(
    answer: web.Response, reason: str
) -> None:
    async def answers(_: web.BaseRequest) -> web.Response:
        return answer

    async with served(answers) as url:
        if reason:
            with pytest.raises(FetchError, match=reason):
                await fetch_json(url)
        else:
            assert await fetch_json(url) == {"keys": KEYS}


# -- the doors -----------------------------------------------------------------------------------


async def test_user_of_a_provider_with_the_name_of_a_configured_user_is_refused(
    tmp_path: Path,
) -> None:
    users = (User("ann@example.com", "token-of-ann"), User("bob", "token-of-bob"))
    config = make_config(tmp_path, users=users)
    admission = Access(config, Provider().users).clients()
    own = {ANONYMOUS, USER}
    assert own == OWN_NAMES
    assert [list(check_users([User(each, "t")], "s")) for each in own] == [
        [("users[0].name", f"{each!r} is a name that HAProc itself uses")] for each in own
    ]
    for sub, refused in (
        ("ann@example.com", True),
        *((each, True) for each in own),
        ("eve", False),
    ):
        headers = {"Authorization": f"Bearer {signed(sub=sub)}"}
        if refused:
            with pytest.raises(RequestError, match="has the name of a user"):
                await admission.admit(headers)
        else:
            rights = GRANTS[1].rights
            assert await admission.admit(headers) == Admitted("eve", rights, issued=True)


class OneJob:
    """Stands for the tokens of jobs: always that of one job of a provider's user."""

    async def submitter(self, token: str, session_id: str = "") -> tuple[str, Rights | None]:
        return "ann@example.com", GRANTS[0].rights

    def authorization_of(self, token: str) -> Any:
        return None


async def test_job_of_a_providers_user_with_the_name_of_a_configured_user_is_refused(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path, users=(User("ann@example.com", "token-of-ann"),))
    headers = {"Authorization": "Bearer haproc-job.7.a.s"}
    with pytest.raises(RequestError, match="has the name of a user"):
        await Access(config, Provider().users).clients(OneJob()).admit(headers)


async def test_token_that_is_not_valid_text_is_refused(tmp_path: Path) -> None:
    admission = Access(make_config(tmp_path), Provider().users).operators()
    with pytest.raises(RequestError) as caught:
        await admission.admit({"Authorization": "Bearer eyJ\udcff.a.b"})
    assert caught.value.error_class == "HAPROC_UNAUTHENTICATED"


@pytest.mark.parametrize("operator", [False, True])
async def test_both_doors_accept_a_providers_tokens(tmp_path: Path, operator: bool) -> None:
    config = replace(make_config(tmp_path), oidc=OIDC)
    access = Access(config, Provider().users)
    path = "/ha/v1/queue" if operator else f"{STATEMENTS}/x"
    expired = signed(exp=1)
    async with door(tmp_path, operator=operator, access=access) as rig:
        for roles, status in ((["admins"], 200 if operator else 404), (["sales"], 403)):
            if not operator and status == 403:
                continue
            headers = {"Authorization": f"Bearer {signed(roles=roles)}"}
            assert await rig.status_of("get", path, headers=headers) == status
        headers = {"Authorization": f"Bearer {expired}"}
        got, answer = await rig.ask("get", path, headers=headers)
        assert (got, "expired" in answer["message"]) == (401, True)
        assert "new token" in answer["hint"]


def test_configuration_of_a_provider_is_loaded(tmp_path: Path) -> None:
    section = f"""
oidc:
  issuer: {ISSUER}
  audience: ring-demo
  grants: [{{value: sales, roles: [writer], tables: [spark_catalog.sales.*]}}]
"""
    config = load(write(tmp_path, ANN, more=section), {})
    assert config.oidc.grants == (Grant("sales", (Role.WRITER,), ("spark_catalog.sales.*",)),)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"issuer": ""}, "oidc.issuer"),
        ({"issuer": "http://login.example.com"}, "oidc.issuer"),
        ({"jwks_url": "http://login.example.com"}, "oidc.jwks_url"),
        ({"audience": ""}, "oidc.audience"),
        ({"algorithms": ()}, "oidc.algorithms"),
        ({"grants": ()}, "oidc.grants"),
        ({"grants": (Grant("x", (Role.PEER,)),)}, "oidc.grants[0].roles"),
        ({"leeway_s": 301.0}, "oidc.leeway_s"),
    ],
)
def test_wrong_configuration_of_a_provider_is_refused_with_its_path(
    changes: dict[str, Any], path: str
) -> None:
    assert [where for where, _ in check_oidc(replace(OIDC, **changes))] == [path]
    assert not [*check_oidc(OIDC), *check_oidc(Oidc())]
    assert not [*check_oidc(replace(OIDC, issuer="http://127.0.0.1:8080"))]
