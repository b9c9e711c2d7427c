"""Users of an OpenID Connect provider: signed tokens (JWT), checked by the provider's public keys.

PyJWT checks a token: its signature by an asymmetric algorithm, its times, issuer and audience. The
keys are fetched in the background: when they are old, and for a token with an unknown key, at most
every `AGAIN_S`. While the provider is away, the present keys stay in use, so users with a known key
are still admitted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
import jwt

from haproc.classify.rights import Rights
from haproc.config.sections import Oidc, is_safe_url
from haproc.failure import ErrorClass, FailureKind, RequestError, message_of, refused

logger = logging.getLogger(__name__)

AGAIN_S: Final = 30.0
"""The least time between two attempts to fetch the keys, even if many tokens name keys that do not
exist. Chosen."""
FETCH_S: Final = 5.0
BYTES_MAX: Final = 1 << 20
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@|:+-]{0,127}")
"""The form of users' names, such as e-mail addresses and the subjects of the usual providers."""
_REQUIRED: Final = ("exp", "iss", "aud")
_DISCOVERY: Final = "/.well-known/openid-configuration"

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]


class FetchError(Exception):
    """The provider gave no answer, or an invalid one."""


async def fetch_json(url: str) -> Mapping[str, Any]:
    """Return the JSON object at a URL; raises FetchError."""
    if not is_safe_url(url):
        raise FetchError(f"{url!r} is no https URL")
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise FetchError(f"{url} answers {response.status}")
            data = await response.content.read(BYTES_MAX + 1)
            while len(data) <= BYTES_MAX and not response.content.at_eof():
                data += await response.content.read(BYTES_MAX + 1 - len(data))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise FetchError(f"{url}: {message_of(error)}") from error
    try:
        found = json.loads(data) if len(data) <= BYTES_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FetchError(f"{url} answers no JSON object of at most {BYTES_MAX} bytes")
    return found


class Keys:
    """The provider's public keys, found by their ids."""

    def __init__(self, settings: Oidc, fetch: Fetch, now: Callable[[], float]) -> None:
        self._settings = settings
        self._fetch = fetch
        self._now = now
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = float("-inf")
        self._why = ""
        self._refreshing: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> jwt.PyJWK | None:
        """Return the key with this id; None if the provider has no such key.

        If ``key_id`` is None: its only key, or None if it has several. Raises RequestError if no
        keys could be fetched so far.
        """
        found, age_s = self._here(key_id), self._now() - self._fetched_s
        if found is not None and age_s < self._settings.keys_kept_s:
            return found
        if self._refreshing is None or self._refreshing.done():
            # Its own task: a client that leaves does not cancel the fetch.
            self._refreshing = asyncio.create_task(self._refresh())
        if found is not None and age_s < 2 * self._settings.keys_kept_s:
            return found  # the new keys come later
        await asyncio.shield(self._refreshing)
        if not self._keys:
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"the keys of the provider {self._settings.issuer} are not here: {self._why}",
                error_class=ErrorClass.PROVIDER_AWAY,
                hint="ask again a little later; operators: see oidc of the configuration",
            )
        return self._here(key_id)

    def _here(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    async def _refresh(self) -> None:
        """Fetch the keys again, unless the last attempt was less than `AGAIN_S` ago."""
        if self._now() - self._tried_s < AGAIN_S:
            return
        self._tried_s = self._now()
        try:
            found = await self._fetch(self._settings.jwks_url or await self._discovered())
            keys = keys_in(found)
            if not keys:
                raise FetchError("the provider has no key that can be used")
        except FetchError as error:
            self._why = str(error)
            logger.warning("the provider's keys were not fetched: %s", error)
            return
        self._keys, self._fetched_s = keys, self._now()

    async def _discovered(self) -> str:
        issuer = self._settings.issuer
        about = await self._fetch(issuer.rstrip("/") + _DISCOVERY)
        url = about.get("jwks_uri")
        if about.get("issuer") != issuer or not isinstance(url, str):
            raise FetchError(f"its description names another issuer than {issuer}, or no jwks_uri")
        return url


def keys_in(found: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """Return the keys for signatures in a provider's answer, by their ids; others are left out."""
    listed = found.get("keys")
    keys: dict[str, jwt.PyJWK] = {}
    for each in listed if isinstance(listed, list) else ():
        if (
            not isinstance(each, dict)
            or each.get("use", "sig") != "sig"
            or each.get("kty") == "oct"
        ):
            continue
        try:
            keys[str(each.get("kid", ""))] = jwt.PyJWK.from_dict(each)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
    return keys


class OidcUsers:
    """The users of an OpenID Connect provider. Implements `haproc.doors.http.access.Provider`."""

    def __init__(
        self,
        settings: Oidc,
        now: Callable[[], float],
        fetch: Fetch = fetch_json,
    ) -> None:
        self._settings = settings
        self._keys = Keys(settings, fetch, now)

    async def user_of(self, token: str) -> tuple[str, Rights]:
        """Return the user and the rights in a signed token; raises RequestError."""
        settings = self._settings
        try:
            head = jwt.get_unverified_header(token)
            algorithm, key_id = head.get("alg"), head.get("kid")
            if algorithm not in settings.algorithms:
                raise jwt.InvalidAlgorithmError("the algorithm is not allowed")
            key = await self._keys.find(key_id)
            if key is None:
                raise jwt.InvalidKeyError("the provider has no such key")
            claims = jwt.decode(
                token,
                key,
                algorithms=[*settings.algorithms],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": [*_REQUIRED, settings.user_claim]},
            )
        except jwt.PyJWTError as error:
            raise refused(
                ErrorClass.UNAUTHENTICATED, f"the token is not taken: {why(error)}", _NEW_TOKEN
            ) from error
        return name_in(claims, settings), rights_in(claims, settings)


_NEW_TOKEN: Final = (
    "have the provider issue a new token for this ring's audience; its claims must be as oidc of "
    "the ring's configuration says"
)
_WHY: Final[Mapping[type[jwt.PyJWTError], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidIssuedAtError: "the time of its issue cannot be",
    jwt.MissingRequiredClaimError: "it lacks a claim that is needed",
    jwt.InvalidAlgorithmError: "its algorithm is not in oidc.algorithms, or not that of its key",
    jwt.InvalidKeyError: "the provider has no such key",
    jwt.InvalidSignatureError: "its signature is wrong",
}


def why(error: jwt.PyJWTError) -> str:
    """Return the reason why a token is refused, in words that repeat nothing of the token."""
    return _WHY.get(type(error), "it cannot be read")


def name_in(claims: Mapping[str, Any], settings: Oidc) -> str:
    """Return the user's name in a token's claims; RequestError if there is none, or a wrong one."""
    name = claims[settings.user_claim]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refused(
            ErrorClass.UNAUTHENTICATED,
            f"the claim {settings.user_claim} is no name of at most 128 letters, digits, ._@|:+-",
            "set oidc.user_claim to a claim with such names",
        )
    return name


def rights_in(claims: Mapping[str, Any], settings: Oidc) -> Rights:
    """Return the rights for the values in a token's claims; RequestError if they give none."""
    values = values_in(claims, settings.roles_claim)
    for grant in settings.grants:
        if grant.value in values:
            return grant.rights
    raise refused(
        ErrorClass.FORBIDDEN,
        f"no value of the token's claim {settings.roles_claim} gives anything at this ring",
        "have the provider give the user one, or an operator add it to oidc.grants",
    )


def values_in(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the texts of a claim: those of a list, or the words of one text.

    ``path``: the claim's name; dots in it lead into objects.
    """
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for step in path.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
    if not isinstance(found, str | list):
        return frozenset()
    values = found.split() if isinstance(found, str) else found
    return frozenset(each for each in values if isinstance(each, str))
