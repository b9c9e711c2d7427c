"""TLS of a HAProc's doors and of its connections to the others, as configured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from haproc.config.tree import Finding


class ClientCertificates(StrEnum):
    """Whether whoever connects to a door must show a certificate."""

    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of the doors: for clients, for operators and peers, for PySpark."""

    certificate_file: Path | None = None
    """The HAProc's certificate (PEM), followed by those between it and its CA. With it all doors
    speak TLS only, and HAProcs show it to each other. SIGHUP has a HAProc read all files of this
    section again."""
    key_file: Path | None = None
    """Key of the certificate (PEM), without a password."""
    ca_file: Path | None = None
    """Certificates (PEM) that peers' certificates must be signed by, and those of clients. Without
    it: those that the system trusts."""
    client_certificates: ClientCertificates = ClientCertificates.NONE
    """Whether every connection to a door must show a certificate that ``ca_file`` has signed:
    ``none``, ``required``. A certificate stands for no user: tokens do, as without it."""
    check_hostname: bool = True
    """Whether a peer's certificate must be for the host of its ``peer``."""

    @property
    def enabled(self) -> bool:
        """True if the doors speak TLS."""
        return self.certificate_file is not None


def check_tls(tls: Tls) -> Iterator[Finding]:
    """Yield what contradicts itself in ``tls``."""
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
