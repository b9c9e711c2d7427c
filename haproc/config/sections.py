"""Sections of the configuration: limits, archive, cache, optimize, users, their tokens."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from haproc.classify.bounds import Bounds
from haproc.classify.rights import Rights, Role

# The hosts that a configuration names.


def is_loopback(host: str) -> bool:
    """True if only processes of the same machine can reach this host."""
    if host.lower() == "localhost":
        return True
    address = _ip(host)
    return address is not None and address.is_loopback


def is_wildcard(host: str) -> bool:
    """True if the host stands for all addresses of a machine: one can listen there, not connect."""
    address = _ip(host)
    return address is not None and address.is_unspecified


def is_client_url(text: str) -> bool:
    """True if the text is a URL by which a client can reach a server."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and not re.search(r"[\s,?#@]", text)
    host = parts.hostname or ""
    named = parts.scheme in ("http", "https") and bool(host) and port != 0
    return plain and named and not is_wildcard(host)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# The limits of one HAProc: of requests, of kept results, of memory.


ENVELOPE_BYTES = 1 << 20
"""The most bytes of a JSON body's other fields, besides a statement of the largest size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one HAProc: sizes, counts and times."""

    operation_bytes_max: int = 64 << 20
    """Bytes of a write; a larger one is refused. ``batch_bytes_max``, ``batch_arrow_bytes_max`` and
    ``part_bytes_max`` are reduced to it if they are not set. Chosen, not measured."""
    statement_bytes_max: int = Bounds().chars_max
    """Text of one statement with its parameters; more is refused. Each copy of 16 MiB blocks the
    HAProc for 5 to 40 ms; send large values as rows."""
    statement_tokens_max: int = Bounds().tokens_max
    """Words, literals and symbols of one statement, steps and expressions of a plan; more is
    refused (``HAPROC_STATEMENT_TOO_COMPLEX``). An INSERT of 480,000 worked on a Spark with 1 GiB of
    heap, one of a million exhausted it: raise it with the driver's memory. It also bounds the
    statement that combines several INSERTs."""
    statement_depth_max: int = Bounds().depth_max
    """Nesting depth of a statement: each bracket, CASE, operator in a row, UNION counts 1, a join
    2, a subquery 9. Spark 4.2.1 with default stacks ran all kinds of 200 and overflowed at 400 to
    800: raise it with ``-Xss``."""
    statements_max: int = 256
    """Requests that run at once. Further ones wait in the wait queue; the user with the fewest
    running requests comes first."""
    statement_queue_s: float = 30.0
    """Time for which a request waits for a permit, at most until its own ``timeout_s``, before it
    is answered 429. Chosen: as long as a client looks for another server."""
    planned_max: int = 8
    """Statements that Spark's driver plans for clients at once, until their tasks run or their rows
    come; further ones wait. Use a few for each core of the driver: with more, no more are planned
    in a second, but each takes longer, and the probe, too."""
    large_statements_max: int = 512 << 10
    """Characters of the SQL texts over 32 Ki that Spark's driver holds for clients at once, until
    their first rows are there; further large texts wait, smaller ones do not. Raise it with the
    driver's heap: such a text takes 500 to 1,000 times its size. Eight SELECTs of 20,000 columns,
    of 300 KB each, filled a heap of 1 GiB, and the cluster was down for minutes."""
    writes_waiting_max: int = 2000
    """Writes in the log that wait for their outcome, and queries that wait for a cluster that is
    behind. They do not count among ``statements_max``, unless there are more than this. Chosen:
    twice a listener's connections."""
    sessions_max: int = 1000
    """Client sessions of the ring; the next one is refused. Counted every minute."""
    session_entries_max: int = 1000
    """Names in a session (views, functions, files …); each takes Spark some 20 ms when the session
    is adopted."""
    session_bytes_max: int = 32 << 20
    """Size of a session's journal, without files."""
    session_files_bytes_max: int = 256 << 20
    """Size of the files of one session."""
    session_here_s: float = 3600.0
    """A session that is unused for so long is removed from this cluster's Spark; a HAProc adopts it
    again at its next use."""
    session_idle_s: float = 86_400.0
    """A session that is unused for so long is closed, up to an hour later. Chosen: a night."""
    connections_max: int = 1000
    """Open connections of each listener. When all are in use, the longest idle connection of the
    user with the most connections is closed; if none is idle, a new one is answered 429. Chosen,
    not measured."""
    requests_bytes_max: int = 512 << 20
    """Bytes of requests and large answers in memory at a time; the next request is answered 429.
    Chosen: eight operations of the largest size."""
    user_share: float = 0.5
    """Share of connections, statements, sessions, kept results and ``requests_bytes_max`` that one
    user may have at a time, in a ring that may have several users; above 0, at most 1. Chosen, not
    measured."""
    staged_bytes_max: int = 16 << 30
    """Bytes of rows of one write with a query that is run once (a nondeterministic INSERT …
    SELECT), and of one body of rows; they pass through the log, and through a staging table on each
    cluster."""
    spooled_bytes_max: int = 32 << 30
    """Bytes of bodies of rows on disk (in ``state_dir``) at a time, from their first byte until
    their operation is applied here; at least ``staged_bytes_max``. A user's share is ``user_share``
    of it."""
    part_bytes_max: int = 8 << 20  # a write's rows in one record, and given to a cluster at once
    """Bytes of a write's rows in one record, and in one transfer to a cluster."""
    part_rows_max: int = 200_000
    """Rows in one record. Chosen: a row with almost no bytes still takes a driver some 100 bytes.
    """
    inline_bytes_max: int = 25 << 20
    """A larger result needs EXTERNAL_LINKS or a stream (Databricks' limit)."""
    results_kept_bytes_max: int = 512 << 20
    """Bytes of results kept for clients that fetch them in chunks; beyond 64 MiB on disk."""
    results_kept_s: float = 900.0
    """Time for which results are kept."""
    batch_operations_max: int = 10_000
    """INSERTs combined into one statement."""
    batch_bytes_max: int = 8 << 20
    """Text of one statement that combines INSERTs."""
    batch_rows_max: int = 20_000
    """Rows of VALUES in one statement that combines INSERTs; 50,000 were measured to work."""
    batch_arrow_bytes_max: int = 44 << 20
    """Bytes of Arrow rows, of several requests, in one statement; all statements that run at the
    same time have at most twice as much. A larger value loads faster. Meanwhile a driver takes some
    ten times as much memory, a HAProc twice. Measured: 232 MiB took 25, 20, 14 s by 12, 24, 48 MiB;
    with a heap of 1 GiB, 128 MiB at once were slow, 192 MiB too much."""
    lanes: int = 4
    """Statements that are applied at the same time, at most 16; on two cores more gave nothing."""
    look_ahead_records_max: int = 16_384
    """Records that are read ahead of the cursor."""
    look_ahead_bytes_max: int = 128 << 20
    """Bytes of the records that are read ahead of the cursor."""
    window_records: int = 65_536
    """Size of the idempotency window in records: within it a repeated request id is recognised. It
    must be more than six seconds of writes. To raise it, raise it on every HAProc before a client
    writes through any: a HAProc that reads a record with a larger window stops (TOO_FAR_BEHIND). To
    lower it, stop all HAProcs when all lags are 0."""

    @property
    def bounds(self) -> Bounds:
        """The bounds of a statement's text that these limits contain."""
        chars_max = min(self.statement_bytes_max, self.operation_bytes_max)
        return Bounds(chars_max, self.statement_tokens_max, self.statement_depth_max)

    @property
    def statement_body_bytes_max(self) -> int:
        """The largest body of a request with a statement, in bytes."""
        return self.bounds.chars_max + ENVELOPE_BYTES


# Rights and masks of the archive: keys below ``archive``.


class Mask(StrEnum):
    """Which literals of a statement the archive hides."""

    LITERALS = "literals"
    """All literals."""
    SECRETS = "secrets"
    """Values after words such as ``password``, ``secret``, ``token`` or ``key``."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of applied operations: who may read it, and what it hides."""

    user: str | None = None
    """The one user who may read the applied operations, the statements of all users included.
    Without it nobody may."""
    mask: Mask = Mask.LITERALS
    """Texts that the archive hides. ``literals``: all texts and numbers; ``secrets``: values after
    words such as ``password``, ``token`` or ``key``."""
    unmasked: tuple[str, ...] = ()
    """Patterns of tables (``spark_catalog.sales.*``). In statements that write only such tables,
    the archive hides only secrets."""
    statement_characters_max: int = 4000
    """Longer statements are cut."""
    holds_trimming: bool = False
    """Keep log records until they are archived, however long that takes: a stopped archive lets the
    log grow."""


# The cache of queries' answers: keys below ``cache``.


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of query answers: which queries it keeps the answers of, and its size."""

    by_default: bool = False
    """Keep the answers of queries for which neither the request nor a rule decides it."""
    bytes_max: int = 128 << 20
    """Memory for all kept answers; the least recently used answer is dropped first. Chosen: small
    compared with the memory of requests."""
    answer_bytes_max: int = 8 << 20
    """A larger answer is not kept. Chosen: enough for short results, not for whole tables."""


# Small files that the ring compacts: keys below ``optimize``.


@dataclass(frozen=True, slots=True)
class OptimizeRule:
    """A rule by which the ring submits OPTIMIZE for some tables; the first that matches counts."""

    table: str
    """A pattern of names, such as ``spark_catalog.sales.*``; the first rule that matches counts."""
    after_commits: int = 100
    """Commits since the last OPTIMIZE after which the ring submits the next one. Chosen: at two
    files a commit, a query of the table reads at most 200 besides the large ones."""


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE statements that the ring submits by itself."""

    tables: tuple[OptimizeRule, ...] = ()
    """Tables with small files to be compacted by the ring. Empty: it submits no OPTIMIZE."""
    interval_s: float = 60.0
    """Interval at which the written tables are checked. Chosen, not measured."""


# Sections of the configuration: users, and the provider of their tokens (OpenID Connect).


DIGEST: Final = "sha256:"
_FAMILIES: Final = ("RS", "PS", "ES")
ALGORITHMS: Final = {f"{family}{bits}" for family in _FAMILIES for bits in (256, 384, 512)}
"""The signature algorithms that may be configured, all asymmetric. The ring has only the public
key, which makes no tokens."""
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(token: str) -> str:
    """Return the hash of a token, which is kept in place of the token."""
    return DIGEST + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class User:
    """A user of the ring's doors; rules refer to users by ``name``."""

    name: str
    """Name of the user, as rules name it."""
    token: str = field(default="", repr=False)
    """Secret; sent as ``Authorization: Bearer …``."""
    token_hash: str = ""
    """In place of ``token``: ``sha256:`` and the token's SHA-256 in hexadecimal. ``haproc token``
    makes a token of 256 random bits and this line. Such a token cannot be guessed from its hash, so
    no slower hash is needed."""
    roles: tuple[Role, ...] = (Role.READER, Role.WRITER)
    """Roles of the token: ``reader`` (queries, the user's own session), ``writer`` (also DML, DDL,
    rows and jobs), ``operator`` (the operator door)."""
    tables: tuple[str, ...] = ("*",)
    """Patterns of the tables that the user's statements may touch (``spark_catalog.sales.*``)."""

    @property
    def rights(self) -> Rights:
        """The roles and table patterns of the user."""
        return Rights(self.roles, tuple(each.lower() for each in self.tables))


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights that a value in a token's claim ``roles_claim`` gives.

    If a token has several values, the first grant in the configuration that fits one is used.
    """

    value: str
    """The value, such as the name of a group or a role at the provider."""
    roles: tuple[Role, ...]
    """``reader``, ``writer``, ``operator``, as in ``users``."""
    tables: tuple[str, ...] = ("*",)
    """Patterns of the tables that statements may touch, as in ``users``."""

    @property
    def rights(self) -> Rights:
        """The roles and table patterns of a user whose token has this value."""
        return Rights(self.roles, tuple(each.lower() for each in self.tables))


@dataclass(frozen=True, slots=True)
class Oidc:
    """A provider of signed tokens (JWT) that the doors accept; off without ``issuer``."""

    issuer: str = ""
    """URL of the provider, exactly as its tokens have it in ``iss``. Empty: no such tokens are
    accepted."""
    audience: str = ""
    """The value that a token must have in ``aud``: this ring's name at the provider."""
    jwks_url: str | None = None
    """URL of the provider's public keys. Without it, the provider's
    ``/.well-known/openid-configuration`` names it."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """Signature algorithms that are accepted; asymmetric ones only."""
    user_claim: str = "sub"
    """The claim with the user's name. It must be one that users cannot choose themselves."""
    roles_claim: str = "roles"
    """The claim with the values that ``grants`` names: a list, or a text with spaces between the
    values. A dot leads into an object (``realm_access.roles``)."""
    grants: tuple[Grant, ...] = ()
    """Roles and tables by value. A token with none of the values has no rights."""
    leeway_s: float = 30.0
    """Difference of clocks that is allowed when a token's times are checked; at most 300."""
    keys_kept_s: float = 3600.0
    """Time after which the keys are fetched again. For a token with an unknown key they are fetched
    at once (every 30 seconds at most). While the provider is away, the present keys stay in use."""


OWN_NAMES: Final = frozenset({"anonymous", "haproc.optimize"})
"""Names of users for requests that come without a user's token. Users with these names would share
their request ids."""


def check_users(users: Sequence[User], secret: str) -> Iterator[tuple[str, str]]:
    """Yield (key's path, message) for each problem in the users' tokens and rights.

    ``secret``: the ring's; no user may have it as a token.
    """
    taken: dict[str, str] = {digest_of(secret): "secret"}
    for index, user in enumerate(users):
        path = f"users[{index}]"
        if user.name in OWN_NAMES:
            yield f"{path}.name", f"{user.name!r} is a name that HAProc itself uses"
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
    """Yield (key's path, message) for each contradiction in the section ``oidc``."""
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
    """True if the URL is safe for secrets: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )
