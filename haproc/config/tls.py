"""The section ``tls``: its keys, and the content of its files."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from haproc.config.tree import Finding


class ClientCertificates(StrEnum):
    """Whether clients must send a certificate."""

    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of the doors: for clients, for operators and peers, for PySpark."""

    certificate_file: Path | None = None
    """The HAProc's certificate (PEM), followed by those between it and its CA. With it all doors
    speak TLS only, and HAProcs send it to each other. After SIGHUP a HAProc reads all files of this
    section again."""
    key_file: Path | None = None
    """Key of the certificate (PEM), without a password."""
    ca_file: Path | None = None
    """Certificates (PEM) of the CAs that must have signed peers' and clients' certificates. Without
    it: those that the system trusts."""
    client_certificates: ClientCertificates = ClientCertificates.NONE
    """Require a certificate that ``ca_file`` has signed for every connection to a door: ``none``,
    ``required``. A certificate identifies no user: users still need tokens."""
    check_hostname: bool = True
    """Require that a peer's certificate is for the host of its ``peer``."""

    @property
    def enabled(self) -> bool:
        """True if the doors use TLS."""
        return self.certificate_file is not None


def check_tls(tls: Tls) -> Iterator[Finding]:
    """Yield (key's path, message) for each contradiction in the section ``tls``."""
    if not tls.enabled and tls.key_file is None:
        if tls != Tls():
            yield "tls", "has no effect without tls.certificate_file and tls.key_file"
    elif tls.key_file is None:
        yield "tls.key_file", "missing: tls.certificate_file needs its key"
    elif not tls.enabled:
        yield "tls.certificate_file", "missing: tls.key_file is the key of no certificate"
    if tls.enabled and not tls.check_hostname and tls.ca_file is None:
        yield "tls.ca_file", "missing: any certificate that the system trusts would be a peer's"
    if tls.client_certificates is ClientCertificates.REQUIRED and tls.ca_file is None:
        yield "tls.ca_file", "missing: it has to have signed the clients' certificates"


# The files of the section ``tls``, read: contexts for both sides of a connection.
#
# `Certificates` holds the last valid reading. Each new connection uses it, so a new reading changes
# new connections and leaves the others alone. Files that cannot be used change nothing.
#
# A HAProc's own certificate is tested at once, by a handshake in memory. Without this test an
# expired certificate, or one that ``tls.ca_file`` has not signed, would be found only by peers that
# refuse it.


logger = logging.getLogger(__name__)

_FLIGHTS_MAX: Final = 10
"""The most rounds of a TLS handshake that is tried in memory; one without errors takes three."""


class CertificateError(OSError):
    """A file of the section ``tls`` cannot be used; ``key`` is the key that names the file."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"tls.{key}: {message}")
        self.key = key
        self.message = message


@dataclass(frozen=True, slots=True)
class Pem:
    """The content of the files in the section ``tls``.

    ``ca``: empty if the system's certificates are trusted.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


@dataclass(frozen=True, slots=True)
class Contexts:
    """What was read from the files of the section ``tls`` at one time.

    - ``server``, ``client``: for the doors, and for connections to other HAProcs;
    - ``relay``: for the connections of jobs' relays to doors;
    - ``own_relay``: for their connections to the HAProc's own door, whose certificate need not be
      for the loopback;
    - ``doubt``: the reason why peers would refuse the certificate; empty if they would not.
    """

    pem: Pem
    server: ssl.SSLContext
    client: ssl.SSLContext
    relay: ssl.SSLContext
    own_relay: ssl.SSLContext
    doubt: str


class Certificates:
    """The certificates in use: those of the last reading of the files that was valid.

    The constructor raises CertificateError.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.now = read_contexts(tls)
        if self.now.doubt:
            logger.warning("%s", _refused(tls, self.now.doubt))

    @property
    def requires_clients(self) -> bool:
        """True if every client that connects to a door must send a certificate."""
        return self._tls.client_certificates is ClientCertificates.REQUIRED

    def reload(self) -> None:
        """Read the files again; if they cannot be used, keep the certificates in use.

        Writes to the program's log which of the two happened.
        """
        try:
            found = read_contexts(self._tls)
        except CertificateError as error:
            logger.error("the certificate in use stays: %s", error)
            return
        if found.doubt and not self.now.doubt:
            logger.error("the certificate in use stays: %s", _refused(self._tls, found.doubt))
            return
        if found.doubt:
            logger.warning("%s", _refused(self._tls, found.doubt))
        self.now = found
        logger.info("new connections use %s as it is now", self._tls.certificate_file)


def read_certificates(tls: Tls) -> Certificates | None:
    """Read the certificates that the section names; None if it names none.

    Raises CertificateError.
    """
    return Certificates(tls) if tls.enabled else None


def client_context(tls: Tls) -> ssl.SSLContext | bool:
    """Return the ``ssl`` argument with which aiohttp's clients connect to a HAProc of the ring.

    Raises CertificateError.
    """
    certificate, key = tls.certificate_file, tls.key_file
    return True if certificate is None or key is None else _client(tls, certificate, key)


def read_contexts(tls: Tls) -> Contexts:
    """Read the files of the section ``tls``; raises CertificateError if one cannot be used.

    The error contains the key that names the file.
    """
    certificate, key = tls.certificate_file, tls.key_file
    assert certificate is not None and key is not None, "see check_tls"
    pem = _read(tls)
    client, relay, own_relay = (_client(tls, certificate, key) for _ in range(3))
    own_relay.check_hostname = False
    for each in (relay, own_relay):
        each.set_alpn_protocols(["h2"])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_pair(server, certificate, key)
    # Each connection sends its certificate anew, so that a changed CA holds for all of them.
    server.options |= ssl.OP_NO_TICKET
    server.num_tickets = 0
    if tls.client_certificates is ClientCertificates.REQUIRED:
        assert tls.ca_file is not None, "see check_tls"
        server.load_verify_locations(cafile=tls.ca_file)
        server.verify_mode = ssl.CERT_REQUIRED
    if _read(tls) != pem:
        raise CertificateError("certificate_file", "the files change: send SIGHUP once they don't")
    return Contexts(pem, server, client, relay, own_relay, doubt(server, own_relay))


def _client(tls: Tls, certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context() if tls.ca_file is None else _trusting(tls.ca_file)
    # A certificate in ca_file is trusted itself, whatever CA has signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = tls.check_hostname
    _load_pair(context, certificate, key)
    return context


def _read(tls: Tls) -> Pem:
    found = {}
    for name in ("certificate_file", "key_file", "ca_file"):
        file: Path | None = getattr(tls, name)
        try:
            found[name] = file.read_bytes() if file is not None else b""
        except OSError as error:
            raise CertificateError(name, f"{file} cannot be read: {error.strerror}") from error
    return Pem(found["certificate_file"], found["key_file"], found["ca_file"])


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise CertificateError("ca_file", f"{ca_file} holds no certificate (PEM)") from error


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # The password keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
        return
    except OSError as error:
        found = error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=certificate)
    except OSError:
        message = f"{certificate} holds no certificate (PEM)"
        raise CertificateError("certificate_file", message) from found
    if isinstance(found, ssl.SSLError) and found.reason == "KEY_VALUES_MISMATCH":
        message = f"{key} is not the key of {certificate}: name the two that belong together"
    else:
        message = f"{key} holds no key (PEM, without a password)"
    raise CertificateError("key_file", message) from found


def doubt(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Return why a client of the ring would refuse the server's certificate; '' if it would not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_FLIGHTS_MAX):
        for end in [*ends]:
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            except ssl.SSLError as error:
                return str(error.reason or error)
        if not ends:
            return ""
    return "the handshake does not end"


def _refused(tls: Tls, why: str) -> str:
    ca = tls.ca_file or "the certificates that the system trusts (tls.ca_file is not set)"
    return (
        f"peers and `haproc` will refuse the certificate in {tls.certificate_file}: {why}; "
        f"they trust {ca}"
    )
