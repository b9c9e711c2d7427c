"""Sections of the configuration: bounds, archive, cache, optimize, users, their tokens."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from haproc.classify.bounds import Bounds
from haproc.classify.rights import Rights, Role

# What a host's name tells about who reaches it.


def is_loopback(host: str) -> bool:
    """Tell whether only processes of the same machine reach this host."""
    if host.lower() == "localhost":
        return True
    address = _ip(host)
    return address is not None and address.is_loopback


def is_wildcard(host: str) -> bool:
    """Tell whether this stands for all addresses of a machine: to listen on, not to connect to."""
    address = _ip(host)
    return address is not None and address.is_unspecified


def is_client_url(text: str) -> bool:
    """Tell whether a client can take this for the URL of a server, and connect to it."""
    try:
        parts = urllib.parse.urlsplit(text)
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


# The bounds of what is taken at once, kept, and held in memory.


ENVELOPE_BYTES = 1 << 20
"""What a JSON body may hold beside a statement of the largest size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one HAProc takes on."""

    operation_bytes_max: int = 64 << 20
    """Bytes of a write; a larger one is refused. ``batch_bytes_max``, ``batch_arrow_bytes_max`` and
    ``part_bytes_max`` are reduced to it where they are not set. Chosen, not measured."""
    statement_bytes_max: int = Bounds().chars_max
    """Text of one statement with its parameters; more is refused. Each copy of 16 MiB blocks the
    HAProc for 5 to 40 ms; send large values as rows."""
    statement_tokens_max: int = Bounds().tokens_max
    """Words, literals and symbols of one statement, steps and expressions of a plan; more is
    refused (``HAPROC_STATEMENT_TOO_COMPLEX``). An INSERT of 480,000 worked on a Spark with 1 GiB of
    heap, one of a million exhausted it: raise it with the driver's memory. It bounds INSERTs that
    are combined into one statement, too."""
    statement_depth_max: int = Bounds().depth_max
    """How deeply a statement may nest: each bracket, CASE, operator in a row, UNION counts 1, a
    join 2, a subquery 9. Spark 4.2.1 with default stacks took all kinds of 200 and overflowed at
    400 to 800: raise it with ``-Xss``."""
    statements_max: int = 256
    """Requests that run at once. Further ones wait in the wait queue, where the user with the
    fewest requests comes first."""
    statement_queue_s: float = 30.0
    """How long a request waits for a permit, at most until its own ``timeout_s``, before it is
    answered 429. Chosen: as long as a client looks for another server."""
    planned_max: int = 8
    """Statements that Spark's driver plans for clients at once, until their tasks run or their rows
    come; further ones wait. A few for each core of the driver: more do not plan more in a second,
    but each takes longer, and the probe with them."""
    large_statements_max: int = 512 << 10
    """Characters of the SQL texts over 32 Ki that Spark's driver holds for clients at once, until
    their first rows are there; further large ones wait, the others do not. Raise it with the
    driver's heap: such a text takes 500 to 1,000 times its size. Eight SELECTs of 20,000 columns,
    of 300 KB each, filled a heap of 1 GiB, and the cluster was down for minutes."""
    writes_waiting_max: int = 2000
    """Writes that are in the log and wait for their outcome, and queries whose cluster is behind.
    They do not count among ``statements_max``, unless there are more than this. Chosen: twice a
    listener's connections."""
    sessions_max: int = 1000
    """The ring's client sessions; the next is refused. Counted every minute."""
    session_entries_max: int = 1000
    """Names that a session holds (views, functions, files …); each takes Spark some 20 ms when the
    session is taken over."""
    session_bytes_max: int = 32 << 20
    """A session's journal, without files."""
    session_files_bytes_max: int = 256 << 20
    """Files that one session was given."""
    session_here_s: float = 3600.0
    """A session that is unused for so long leaves this cluster's Spark; a HAProc takes it over
    again at its next use."""
    session_idle_s: float = 86_400.0
    """A session that is unused for so long is closed, to within an hour. Chosen: a night."""
    connections_max: int = 1000
    """Open connections of each listener. Where all are in use, the one that is idle longest is
    closed, of the user who has most; if each has a request, a new one is answered 429. Chosen, not
    measured."""
    requests_bytes_max: int = 512 << 20
    """Bytes of requests and large answers in memory at a time; the next request is answered 429.
    Chosen: eight operations of the largest size."""
    user_share: float = 0.5
    """Share of connections, statements, sessions, kept results and ``requests_bytes_max`` that one
    user may have at a time, where a ring may have several; above 0, at most 1. Chosen, not
    measured."""
    staged_bytes_max: int = 16 << 30
    """Bytes of rows of one write whose query is run once (a nondeterministic INSERT … SELECT), and
    of one body of rows; they pass through the log, and through a staging table on each cluster."""
    spooled_bytes_max: int = 32 << 30
    """Bodies of rows on disk (in ``state_dir``) at a time, from their first byte until their
    operation is applied here; at least ``staged_bytes_max``. A user's share is ``user_share`` of
    it."""
    part_bytes_max: int = 8 << 20  # a write's rows in one record, and given to a cluster at once
    """Bytes of a write's rows in one record; a cluster gets as many at a time."""
    part_rows_max: int = 200_000
    """Rows in one record. Chosen: a row with almost no bytes still takes a driver some 100 bytes.
    """
    inline_bytes_max: int = 25 << 20
    """A larger result needs EXTERNAL_LINKS or a stream (Databricks' limit)."""
    results_kept_bytes_max: int = 512 << 20
    """Results kept for clients that fetch them in chunks; beyond 64 MiB on disk."""
    results_kept_s: float = 900.0
    """How long results are kept."""
    batch_operations_max: int = 10_000
    """INSERTs combined into one statement."""
    batch_bytes_max: int = 8 << 20
    """Text of one statement that combines INSERTs."""
    batch_rows_max: int = 20_000
    """Rows of VALUES in one such statement; 50,000 were measured to work."""
    batch_arrow_bytes_max: int = 44 << 20
    """Rows in Arrow, of several requests, in one statement; all statements that run side by side
    have at most twice as much. A larger value loads faster; a driver takes some ten times as much
    memory, a HAProc twice, while it sends them. Measured: 232 MiB took 25, 20, 14 s by 12, 24,
    48 MiB; with a heap of 1 GiB 128 MiB at once were slow, 192 MiB too much."""
    lanes: int = 4
    """Statements that are applied side by side, at most 16; on two cores more gave nothing."""
    look_ahead_records_max: int = 16_384
    """Records read ahead of the cursor."""
    look_ahead_bytes_max: int = 128 << 20
    """Bytes of the records that are read ahead of the cursor."""
    window_records: int = 65_536
    """Size of the idempotency window in records: how far back a repeated request id is recognised.
    It is more than six seconds of writes. To raise it, raise it on every HAProc before a client
    writes through any: a HAProc with less than a record asks for stops (TOO_FAR_BEHIND). To lower
    it, stop all HAProcs when all lags are 0."""

    @property
    def bounds(self) -> Bounds:
        """What a statement's text may be like."""
        chars_max = min(self.statement_bytes_max, self.operation_bytes_max)
        return Bounds(chars_max, self.statement_tokens_max, self.statement_depth_max)

    @property
    def statement_body_bytes_max(self) -> int:
        """What the body of a request may hold that brings a statement."""
        return self.bounds.chars_max + ENVELOPE_BYTES


# What the archive may read, and what is shown of it: keys below ``archive``.


class Mask(StrEnum):
    """What of a statement's literals the archive does not show."""

    LITERALS = "literals"
    """All of them."""
    SECRETS = "secrets"
    """Values behind words such as ``password``, ``secret``, ``token`` or ``key``."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Who may read what was applied, and what is shown of it."""

    user: str | None = None
    """The one user who may read what was applied, the statements of all users included. Without it
    nobody may."""
    mask: Mask = Mask.LITERALS
    """What the archive hides. ``literals``: all texts and numbers; ``secrets``: values behind words
    such as ``password``, ``token`` or ``key``."""
    unmasked: tuple[str, ...] = ()
    """Patterns of tables (``spark_catalog.sales.*``). Of statements that write only these, the
    archive hides secrets alone."""
    statement_characters_max: int = 4000
    """Longer statements are cut."""
    holds_trimming: bool = False
    """Whether the log keeps what is not archived yet, however long that takes: a stopped archive
    lets the log grow."""


# Answers that are kept to be given again: keys below ``cache``.


@dataclass(frozen=True, slots=True)
class Cache:
    """Which queries' answers are kept, and how much of them."""

    by_default: bool = False
    """Whether answers are kept to queries of which neither the request nor a rule says anything."""
    bytes_max: int = 128 << 20
    """Memory for all kept answers; the least recently used answer goes first. Chosen: little beside
    what requests may take."""
    answer_bytes_max: int = 8 << 20
    """A larger answer is not kept. Chosen: what is read at a glance, not whole tables."""


# Which tables' small files are put together by the ring: keys below ``optimize``.


@dataclass(frozen=True, slots=True)
class OptimizeRule:
    """Of several that match a table the first one counts."""

    table: str
    """A pattern of names, such as ``spark_catalog.sales.*``; the first that matches counts."""
    after_commits: int = 100
    """Commits since the last OPTIMIZE after which the next one is submitted. Chosen: with two files
    of each, a query of the table reads at most so many besides the large ones."""


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE as the ring submits it by itself."""

    tables: tuple[OptimizeRule, ...] = ()
    """Tables whose small files the ring compacts. Empty: it submits no OPTIMIZE."""
    interval_s: float = 60.0
    """How often the tables that were written are checked. Chosen, not measured."""


# Sections of the configuration: users, and the provider of their tokens (OpenID Connect).


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
