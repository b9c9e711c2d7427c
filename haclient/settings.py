"""The checked arguments of `connect`, TLS files, and the log offsets that answers must show."""

from __future__ import annotations

import ipaddress
import math
import ssl
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from haclient.choosing import P95, Order
from haclient.exceptions import InterfaceError
from haclient.failover import Policy

# TLS of a client: the certificates that it trusts, and its own one.
#
# They are the options ``ca_file``, ``certificate_file`` and ``key_file`` of `haclient.connect` and
# `haclient.spark`; commands and the SQLAlchemy dialect read them from the environment, too.


CA_VARIABLE = "HACLIENT_CA_FILE"
CERTIFICATE_VARIABLE = "HACLIENT_CERTIFICATE_FILE"
KEY_VARIABLE = "HACLIENT_KEY_FILE"
VARIABLES: Final[Mapping[str, str]] = {
    "ca_file": CA_VARIABLE,
    "certificate_file": CERTIFICATE_VARIABLE,
    "key_file": KEY_VARIABLE,
}
"""The environment variable that gives an option's value if the option is missing."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files (PEM) for TLS connections.

    ``ca_file``: certificates that may have signed the servers'; None: the system's.
    ``certificate_file``, ``key_file``: the client's own, for servers that ask for one.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __bool__(self) -> bool:
        return any((self.ca_file, self.certificate_file, self.key_file))

    def context(self) -> ssl.SSLContext:
        """Return Python's TLS context for HTTPS connections.

        Raises InterfaceError, and OSError if the system's certificates cannot be read.
        """
        self.contents()
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            # A certificate in ca_file is trusted itself, with any issuer.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        except OSError as error:
            if self.ca_file is None:
                raise
            raise InterfaceError(f"ca_file {self.ca_file} holds no certificate (PEM)") from error
        try:
            if self.certificate_file is not None:
                # The password keeps OpenSSL from asking for one at the terminal.
                context.load_cert_chain(self.certificate_file, self.key_file, password="")
        except OSError as error:
            files = f"{self.certificate_file} and {self.key_file or 'no key_file'}"
            raise InterfaceError(
                f"{files} are no certificate and its key (PEM, without a password): {error}"
            ) from error
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the content of the three files; None for one that is not given.

        Raises InterfaceError for an unreadable one.
        """
        ca, certificate, key = (self._content(name) for name in VARIABLES)
        return ca, certificate, key

    def _content(self, name: str) -> bytes | None:
        file: Path | None = getattr(self, name)
        try:
            return None if file is None else file.read_bytes()
        except OSError as error:
            raise InterfaceError(f"{name} cannot be read: {error}") from error


def tls_files(
    ca_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
) -> TlsFiles:
    """Return the TLS files that these options name. Raises InterfaceError for a key alone."""
    if key_file and not certificate_file:
        raise InterfaceError("key_file is the key of no certificate: certificate_file")
    ca, certificate, key = (
        Path(each).expanduser() if each else None for each in (ca_file, certificate_file, key_file)
    )
    return TlsFiles(ca, certificate, key)


def tls_options(
    environ: Mapping[str, str], given: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return the TLS options: from ``given``, or if missing there from ``environ``."""
    found = {name: (given or {}).get(name) or environ.get(VARIABLES[name]) for name in VARIABLES}
    return {name: str(value) for name, value in found.items() if value}


# The checked arguments of `connect`, and the offsets that a session's answers must show.


LEVELS = ("any", "bounded", "session", "linearizable")


@dataclass(frozen=True, slots=True)
class SeenOffsets:
    """The log offsets that a connection has written and seen: a session read shows these at least.

    Every answer names an offset of the ring's log (``after_offset``): a cluster that has applied
    all records below it shows everything that the answer showed. The offsets are kept for each
    cluster, because a cluster never goes back behind its own answers: so a client that stays with
    one cluster never waits.

    ``after_offset``: an offset whose cluster is not known, such as the token of another connection.
    """

    after_offset: int = 0
    by_cluster: Mapping[str, int] = field(default_factory=dict)

    def after(self, cluster: object, offset: object) -> SeenOffsets:
        """Return the offsets after an answer of ``cluster``; without an offset nothing changes."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            return self
        if not isinstance(cluster, str) or not cluster:
            return replace(self, after_offset=max(self.after_offset, offset))
        if self.by_cluster.get(cluster, 0) >= offset:
            return self
        return replace(self, by_cluster={**self.by_cluster, cluster: offset})

    @property
    def token(self) -> int:
        """Return the highest of the offsets: a cluster that has applied it shows all of them."""
        return max([self.after_offset, *self.by_cluster.values()])

    def fields(self, consistency: str | None) -> dict[str, Any]:
        """Return the JSON fields for a request with this read level.

        Empty for the level any. None as the level: the server chooses it.
        """
        if consistency == "any":
            return {}
        # Linearizable and bounded answers are measured from the log's end. These fields keep a
        # client that changes levels from going back.
        fields: dict[str, Any] = {"after_offset": self.after_offset, "seen": dict(self.by_cluster)}
        return {name: value for name, value in fields.items() if value}


NOTHING_SEEN = SeenOffsets()


# The checked arguments of `connect`.


_POLICY_FIELDS = frozenset(f.name for f in fields(Policy))


@dataclass(frozen=True, slots=True)
class Server:
    """The door for clients of one HAProc: its URL, and its index in the connection."""

    index: int
    url: str
    secure: bool
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        """True if the URL names the machine on which it is used, such as ``localhost``."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Failover:
    """An event: a request goes on to another server, or again to the only one."""

    request_id: str
    failed: str
    """The URL of the server that failed."""
    next: str
    """The URL of the server that the request is sent to next."""
    message: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a connection: the arguments of `connect` after their check."""

    servers: tuple[Server, ...]
    token: str | None = field(default=None, repr=False)
    user: str | None = None
    """A label for the servers' access logs (User-Agent); the token identifies the user."""
    tls: TlsFiles = TlsFiles()
    """The certificates for servers with an ``https`` URL."""
    catalog: str | None = None
    schema: str | None = None
    timeout_s: float = 300.0
    """The time limit of a request, over all attempts; the server gets a little less."""
    buffer_bytes_max: int = 64 << 20
    """A result up to this size is read completely before ``execute`` returns.

    So a server's failure in the middle of it stays hidden: the request goes to another server. A
    larger result is streamed. Chosen, not measured.
    """
    order: Order = Order.ORDERED
    client_number: int | None = None
    """The number that chooses this client's order of servers with `Order.SPREAD`.

    None: a random one.
    """
    discover: bool = True
    """True if the client learns the ring's other servers from the given ones."""
    consistency: str | None = None
    """The read level of queries, unless `execute` states it; None: the server's default."""
    acceptable_offset_lag: int | None = None
    after_offset: int = 0
    """The log offset that queries must show, at every level but `any`.

    It is the token of another connection; 0: none.
    """
    hedge_after: float | str | None = None
    """After this time a query is also sent to a second server: seconds, or `choosing.P95`.

    None: never.
    """
    policy: Policy = field(default_factory=Policy)
    on_failover: Callable[[Failover], None] | None = None


def make_settings(
    servers: str | Iterable[str],
    *,
    token: str | None = None,
    user: str | None = None,
    ca_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    catalog: str | None = None,
    schema: str | None = None,
    timeout_s: float = 300.0,
    buffer_bytes_max: int = 64 << 20,
    on_failover: Callable[[Failover], None] | None = None,
    order: str = "ordered",
    client_number: int | None = None,
    discover: bool = True,
    hedge_after_s: float | str | None = None,
    consistency: str | None = None,
    acceptable_offset_lag: int | None = None,
    after_offset: int | None = None,
    **policy: Any,
) -> Settings:
    """Check all arguments of `connect`; return them as settings. Raises InterfaceError."""
    if timeout_s <= 0:
        raise InterfaceError("timeout_s must be greater than 0")
    for name, value in (("token", token), ("user", user)):
        if value is not None and not (value.isprintable() and value.isascii()):
            raise InterfaceError(f"{name} must be printable ASCII")
    return Settings(
        servers=parse_servers(servers),
        token=token,
        user=user,
        tls=tls_files(ca_file, certificate_file, key_file),
        catalog=catalog,
        schema=schema,
        timeout_s=timeout_s,
        buffer_bytes_max=buffer_bytes_max,
        order=order_of(order),
        client_number=whole("client_number", client_number),
        discover=discover,
        hedge_after=_hedge_after(hedge_after_s),
        consistency=_consistency(consistency),
        acceptable_offset_lag=whole("acceptable_offset_lag", acceptable_offset_lag),
        after_offset=whole("after_offset", after_offset) or 0,
        policy=policy_of(policy),
        on_failover=on_failover,
    )


def policy_of(options: dict[str, Any]) -> Policy:
    """Return the failover policy with these options. Raises InterfaceError for unknown ones."""
    unknown = sorted(options.keys() - _POLICY_FIELDS)
    if unknown:
        raise InterfaceError(
            f"there is no option {', '.join(unknown)}; "
            f"the failover policy's are {', '.join(sorted(_POLICY_FIELDS))}"
        )
    return Policy(**options)


def order_of(name: str) -> Order:
    """Return the order with this name. Raises InterfaceError if there is none."""
    try:
        return Order(name)
    except ValueError:
        known = ", ".join(Order)
        raise InterfaceError(f"order must be one of {known}, not {name!r}") from None


def whole(name: str, number: Any) -> int | None:
    """Return the number if it is whole and not negative, None for None; else InterfaceError."""
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InterfaceError(f"{name} must be a whole number, 0 or more")
    return number


def _consistency(level: str | None) -> str | None:
    if level is None or level in LEVELS:
        return level
    raise InterfaceError(f"consistency must be one of {', '.join(LEVELS)}, not {level!r}")


def _hedge_after(given: float | str | None) -> float | str | None:
    if given is None or given == P95:
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise InterfaceError(f"hedge_after_s must be seconds above 0 or {P95!r}, not {given!r}")
    return float(given)


def parse_servers(servers: str | Iterable[str]) -> tuple[Server, ...]:
    """Return the servers in ``"http://a:1,b:2"`` or in a list, in order of preference.

    A scheme holds for the servers behind it, too. Raises InterfaceError.
    """
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found: list[Server] = []
    scheme = "http"
    for text in (t.strip() for t in texts):
        if not text:
            continue
        if "://" in text:
            scheme = text.split("://", 1)[0].lower()
        else:
            text = f"{scheme}://{text}"
        found.append(server_at(len(found), text))
    if not found:
        raise InterfaceError("no server is given: expected for instance 'http://a:8080,b:8080'")
    if len({server.url for server in found}) < len(found):
        raise InterfaceError("a server is listed twice")
    return tuple(found)


def server_at(index: int, text: str) -> Server:
    """Return the server with this URL; ``index``: its number. Raises InterfaceError."""
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InterfaceError(f"{text!r} is not the URL of a server: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InterfaceError(f"{text!r} is not the URL of a server (http://host:port)")
    if parts.query or parts.fragment or parts.username is not None:
        raise InterfaceError(f"{text!r} may only have a scheme, a host, a port and a path")
    secure = parts.scheme == "https"
    port = port if port is not None else (443 if secure else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    prefix = parts.path.rstrip("/")
    url = f"{parts.scheme}://{host}:{port}{prefix}"
    return Server(index, url, secure, parts.hostname, port, prefix)
