"""Certificates for tests, made by openssl: of the test's own CA, in a folder."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haproc.config.tls import Tls

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA; its certificate is in ``file``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self.file, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        made = ("-keyout", self._key, "-out", self.file, "-days", "10", "-subj", f"/CN={name}")
        _openssl("req", "-x509", *_KEY, *made, "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def issue(self, name: str, *, days: int = 10, hosts: str = "") -> Pair:
        """Return a new certificate, for this machine's loopback if no ``hosts`` are given.

        One of less than 0 ``days`` is out of date. Issued again under a name, it replaces the file.
        """
        ends = ("key", "csr", "pem", "ext")
        key, request, file, extensions = (self._folder / f"{name}.{end}" for end in ends)
        names = f"subjectAltName={hosts or 'DNS:localhost,IP:127.0.0.1'}"
        extensions.write_text(f"{names}\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key),
            *("-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", file),
        )
        return Pair(file, key)

    @staticmethod
    def lock(key: Path, file: Path) -> None:
        """Write a key that needs a password."""
        _openssl("ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", file)

    def tls(self, name: str = "door", *, days: int = 10, hosts: str = "", **settings: Any) -> Tls:
        """Return the section ``tls`` of a HAProc with a new certificate of this name."""
        pair = self.issue(name, days=days, hosts=hosts)
        return Tls(pair.certificate, pair.key, **{"ca_file": self.file, **settings})
