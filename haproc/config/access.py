"""Sections of the configuration: users, and the provider of their tokens (OpenID Connect)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from haproc.classify.rights import Rights, Role
from haproc.config.hosts import is_loopback

DIGEST: Final = "sha256:"
_FAMILIES: Final = ("RS", "PS", "ES")
ALGORITHMS: Final = {f"{family}{bits}" for family in _FAMILIES for bits in (256, 384, 512)}
"""Those of which the ring has only the public half: whoever reads its files can make no token."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return DIGEST + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class User:
    """Who may use the doors; the name is what rules see."""

    name: str
    """Name of the user, as rules name it."""
    token: str = field(default="", repr=False)
    """Secret; sent as ``Authorization: Bearer …``."""
    token_hash: str = ""
    """In place of ``token``: ``sha256:`` and the token's SHA-256 in hexadecimal. ``haproc token``
    makes a token of 256 random bits and this line; so much cannot be guessed from its hash, and no
    slower hash is needed."""
    roles: tuple[Role, ...] = (Role.READER, Role.WRITER)
    """What the token opens: ``reader`` (queries, the own session), ``writer`` (DML, DDL, rows and
    jobs as well), ``operator`` (the operator door)."""
    tables: tuple[str, ...] = ("*",)
    """Patterns of the tables that the user's statements may touch (``spark_catalog.sales.*``)."""

    @property
    def rights(self) -> Rights:
        """Return what the user may do."""
        return Rights(self.roles, tuple(each.lower() for each in self.tables))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a value of ``roles_claim`` gives; of several that a token has the first one counts."""

    value: str
    """The value, such as the name of a group or a role at the provider."""
    roles: tuple[Role, ...]
    """As of ``users``."""
    tables: tuple[str, ...] = ("*",)
    """As of ``users``."""

    @property
    def rights(self) -> Rights:
        """Return what a user with this value may do."""
        return Rights(self.roles, tuple(each.lower() for each in self.tables))


@dataclass(frozen=True, slots=True)
class Oidc:
    """A provider whose signed tokens (JWT) the doors take; off without ``issuer``."""

    issuer: str = ""
    """URL of the provider, exactly as its tokens have it in ``iss``. Empty: no such tokens are
    taken."""
    audience: str = ""
    """What a token must have in ``aud``: the name that this ring has at the provider."""
    jwks_url: str | None = None
    """URL of the provider's public keys. Without it, the provider's
    ``/.well-known/openid-configuration`` names it."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """Algorithms of signatures that are taken; asymmetric ones only."""
    user_claim: str = "sub"
    """The claim with the user's name. It must be one that users cannot choose themselves."""
    roles_claim: str = "roles"
    """The claim with the values that ``grants`` names: a list, or text with spaces between. A dot
    leads into an object (``realm_access.roles``)."""
    grants: tuple[Grant, ...] = ()
    """What the values give. A token with none of them opens nothing."""
    leeway_s: float = 30.0
    """By how much clocks may differ where a token's times are checked; at most 300."""
    keys_kept_s: float = 3600.0
    """After so long the keys are fetched again, and at once for a token of an unknown key (every 30
    seconds at most). While the provider is away, the keys that are here are used on."""


def check_users(users: Sequence[User], secret: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the users' tokens and rights, by path."""
    taken: dict[str, str] = {digest_of(secret): "secret"}
    for index, user in enumerate(users):
        path = f"users[{index}]"
        if bool(user.token) == bool(user.token_hash):
            yield path, f"{user.name}: give either token or token_hash"
            continue
        key = "token" if user.token else "token_hash"
        if user.token_hash and not _HASH.fullmatch(user.token_hash):
            yield (
                f"{path}.{key}",
                f"{user.name}: must be sha256: and 64 digits, as haproc token prints it",
            )
        digest = digest_of(user.token) if user.token else user.token_hash
        first = taken.setdefault(digest, f"{path}.{key}")
        if first != f"{path}.{key}":
            yield f"{path}.{key}", f"is the same as {first}"
        yield from _rights(path, user.roles, user.tables)


def _rights(path: str, roles: Sequence[Role], tables: Sequence[str]) -> Iterator[tuple[str, str]]:
    if Role.PEER in roles:
        yield f"{path}.roles", "only the ring's secret has the role peer"
    if not roles:
        yield f"{path}.roles", "name at least one role, or remove the user"
    if not tables:
        yield f"{path}.tables", 'name at least one pattern, "*" for all tables'


def check_oidc(oidc: Oidc) -> Iterator[tuple[str, str]]:
    """Yield what contradicts itself in the provider's section, by path."""
    if not oidc.issuer:
        if oidc != Oidc():
            yield "oidc.issuer", "missing"
        return
    for key, url in (("issuer", oidc.issuer), ("jwks_url", oidc.jwks_url)):
        if url is not None and not is_safe_url(url):
            yield f"oidc.{key}", f"{url!r} must be an https URL (http on loopback only)"
    if not oidc.audience:
        yield "oidc.audience", "missing: tokens for other services would be taken, too"
    for name in sorted({*oidc.algorithms} - ALGORITHMS):
        yield "oidc.algorithms", f"{name!r} is none of {', '.join(sorted(ALGORITHMS))}"
    if not oidc.algorithms:
        yield "oidc.algorithms", "name at least one"
    if not oidc.grants:
        yield "oidc.grants", "no token would open anything: name a value of roles_claim"
    if oidc.leeway_s > 300:
        yield "oidc.leeway_s", f"must be at most 300, not {oidc.leeway_s:g}"
    for index, grant in enumerate(oidc.grants):
        yield from _rights(f"oidc.grants[{index}]", grant.roles, grant.tables)


def is_safe_url(url: str) -> bool:
    """True for https, and for http to the own machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )
