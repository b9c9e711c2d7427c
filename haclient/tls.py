"""TLS of a client: whose certificates it trusts, and its own one.

They are the options ``ca_file``, ``certificate_file`` and ``key_file`` of `haclient.connect` and
`haclient.spark`; commands and the SQLAlchemy dialect take them from the environment, too.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haclient.exceptions import InterfaceError

CA_VARIABLE = "HACLIENT_CA_FILE"
CERTIFICATE_VARIABLE = "HACLIENT_CERTIFICATE_FILE"
KEY_VARIABLE = "HACLIENT_KEY_FILE"
VARIABLES: Final[Mapping[str, str]] = {
    "ca_file": CA_VARIABLE,
    "certificate_file": CERTIFICATE_VARIABLE,
    "key_file": KEY_VARIABLE,
}
"""The environment's name of each option."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files (PEM), and for gRPC their content.

    ``ca_file``: certificates that may have signed the servers'; None: those that the system trusts.
    ``certificate_file``, ``key_file``: the client's own, for servers that ask for one.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __bool__(self) -> bool:
        return any((self.ca_file, self.certificate_file, self.key_file))

    def context(self) -> ssl.SSLContext:
        """Return the context of HTTPS connections.

        Raises InterfaceError, and OSError if those that the system trusts cannot be read.
        """
        self.contents()
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            # A certificate that stands in ca_file is trusted itself, whoever has signed it.
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
        """Return what the three files hold; raises InterfaceError for one that cannot be read."""
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
    """Return the files of these options; raises InterfaceError."""
    if key_file and not certificate_file:
        raise InterfaceError("key_file is the key of no certificate: certificate_file")
    ca, certificate, key = (
        Path(each).expanduser() if each else None for each in (ca_file, certificate_file, key_file)
    )
    return TlsFiles(ca, certificate, key)


def tls_options(
    environ: Mapping[str, str], given: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return the options that are ``given``, or else those of the environment."""
    found = {name: (given or {}).get(name) or environ.get(VARIABLES[name]) for name in VARIABLES}
    return {name: str(value) for name, value in found.items() if value}
