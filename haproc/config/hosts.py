"""What a host's name tells about who reaches it."""

from __future__ import annotations

import ipaddress


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


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
