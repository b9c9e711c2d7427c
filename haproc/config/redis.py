"""Where a ring's Redis is, by the configuration's URL."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PORT = 6379
_SENTINEL_PORT = 26379
_FORM = (
    "redis://host:port/0, or redis+sentinel://host:port,host:port/NAME with the name that the "
    "sentinels have for it; rediss:// and rediss+sentinel:// for TLS"
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """One server, or the sentinels that know which one is the master ``master``."""

    servers: tuple[tuple[str, int], ...]
    master: str
    """Empty: the server itself."""
    tls: bool
    database: int

    @property
    def shown(self) -> str:
        """The servers, for people."""
        return ", ".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.servers)


def parse_redis_url(text: str) -> RedisUrl:
    """Read the URL; ValueError says what is wrong with it, and never repeats a password."""
    found = re.fullmatch(r"(redis|rediss)(\+sentinel)?://([^/?#]*)((?:/[^/?#]*){0,2})", text)
    if found is None:
        raise ValueError(f"is not a URL of a Redis: {_FORM}")
    scheme, sentinel, hosts, path = found.groups()
    if "@" in hosts:
        raise ValueError(
            "user and password must not stand in the URL: use redis.username and redis.password"
        )
    port = _SENTINEL_PORT if sentinel else _PORT
    servers = tuple(_server(host, port) for host in hosts.split(","))
    parts = [part for part in path.split("/") if part]
    master = parts.pop(0) if sentinel and parts else ""
    if sentinel and not re.fullmatch(r"[A-Za-z0-9._-]+", master):
        raise ValueError(f"names no master: {_FORM}")
    if not sentinel and len(servers) > 1:
        raise ValueError(f"names several servers, which only sentinels can be: {_FORM}")
    if len(parts) > 1 or not all(re.fullmatch(r"\d{1,5}", part) for part in parts):
        raise ValueError(f"a database is a number: {_FORM}")
    return RedisUrl(servers, master, scheme == "rediss", int(parts[0]) if parts else 0)


def _server(text: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?", text)
    port = int(found[3] or default_port) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise ValueError(f"{text[:80]!r} is not host:port with a port of 1 to 65535")
    return found[1] or found[2], port
