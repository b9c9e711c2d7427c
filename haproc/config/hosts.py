"""What a host's name tells about who reaches it."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse


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
