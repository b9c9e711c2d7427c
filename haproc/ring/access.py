"""Users of a local ring: their tokens, and the certificate under which PySpark sends one.

PySpark sends a token over TLS only, also on loopback. So a ring with users has a certificate of its
own, signed by nobody else: clients are told to trust it.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from haproc.config.check import NAME
from haproc.ring.errors import RingError

CERTIFICATE: Final = Path("tls", "door.pem")
"""In the ring's folder."""
_KEY: Final = Path("tls", "door.key")
_DAYS: Final = 3650
_NAMES: Final = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_TIMEOUT_S: Final = 30.0


def make_access(folder: Path, users: Sequence[str]) -> dict[str, Any]:
    """Make tokens and a certificate; return the configuration's keys. Raises RingError."""
    if not users:
        return {}
    described = []
    for name in users:
        if not NAME.fullmatch(name):
            raise RingError(f"{name!r} is no user's name: letters, digits, '.', '_' and '-'")
        token = token_file(name)
        write_secret(folder / token)
        described.append({"name": name, "token": {"file": str(token)}})
    _make_certificate(folder)
    files = {"ssl_certificate_file": str(CERTIFICATE), "ssl_key_file": str(_KEY)}
    return {"users": described, "connect": files}


def token_file(user: str) -> Path:
    """Return where a user's token is, in the ring's folder."""
    return Path("secrets", f"user-{user}")


def write_secret(file: Path) -> None:
    """Write a new secret, which only its owner can read."""
    file.touch(mode=0o600)
    file.write_text(secrets.token_urlsafe(24))


def _make_certificate(folder: Path) -> None:
    key, certificate = folder / _KEY, folder / CERTIFICATE
    key.parent.mkdir(mode=0o700, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", str(_DAYS)]
    command += ["-subj", "/CN=localhost", "-addext", _NAMES]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    except FileNotFoundError as error:
        raise RingError("a ring with users needs the command openssl, for TLS") from error
    except subprocess.SubprocessError as error:
        raise RingError(f"openssl made no certificate: {error}") from error
    key.chmod(0o600)
