"""A ring's Redis as configured: where it is, and what must not be said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from haproc.config.hosts import is_loopback, is_wildcard
from haproc.config.model import Config, Redis, StateWay
from haproc.config.tree import Finding

# Where a ring's Redis is, by the configuration's URL.


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


# What a configuration must not say about states shared through Redis. Values in, findings out.


_MISSED_IN_A_ROW_MIN = 3
"""Fewer would make peers silent before the mesh takes over from a Redis that is lost."""
_SSL_KEYS = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")


def check_redis(config: Config) -> Iterator[Finding]:
    """Yield what contradicts itself in ``state`` and ``redis``."""
    redis = config.redis
    if config.state is not StateWay.REDIS:
        if redis != Redis():
            yield "redis", "is not used: state would have to be redis"
        return
    if config.membership.missed_in_a_row < _MISSED_IN_A_ROW_MIN:
        yield (
            "membership.missed_in_a_row",
            f"must be at least {_MISSED_IN_A_ROW_MIN} with state: redis, so that the mesh takes "
            "over in time when Redis is lost",
        )
    if redis.key_ttl_s < config.membership.report_interval_s * 2:
        yield (
            "redis.key_ttl_s",
            f"{redis.key_ttl_s:g} is less than two of membership.report_interval_s "
            f"({config.membership.report_interval_s:g}): keys would vanish and return",
        )
    if not redis.url:
        yield "redis.url", "missing: state is redis"
        return
    try:
        url = parse_redis_url(redis.url)
    except ValueError as error:
        yield "redis.url", str(error)
        return
    yield from _place(url)
    yield from _access(redis, url)


def _place(url: RedisUrl) -> Iterator[Finding]:
    for host, _ in url.servers:
        if is_wildcard(host):
            yield "redis.url", f"nobody can connect to {host}"


def _access(redis: Redis, url: RedisUrl) -> Iterator[Finding]:
    if redis.username and not redis.password:
        yield "redis.password", "missing: redis.username needs it"
    if redis.sentinel_username and not redis.sentinel_password:
        yield "redis.sentinel_password", "missing: redis.sentinel_username needs it"
    if redis.sentinel_password and not url.master:
        yield "redis.sentinel_password", "has no effect: redis.url names no sentinels"
    if not url.tls:
        for key in _SSL_KEYS:
            if getattr(redis, key):
                yield f"redis.{key}", "has no effect without TLS: redis.url with rediss://"
        if not redis.ssl_check_hostname:
            yield (
                "redis.ssl_check_hostname",
                "has no effect without TLS: redis.url with rediss://",
            )
    if redis.ssl_key_file and not redis.ssl_certificate_file:
        yield "redis.ssl_key_file", "is the key of no certificate: redis.ssl_certificate_file"
    outside = [host for host, _ in url.servers if not is_loopback(host)]
    secret = redis.password or redis.sentinel_password
    if secret and outside and not url.tls and not redis.allow_password_plaintext:
        yield (
            "redis.url",
            f"the password would cross the network to {outside[0]} in clear: use rediss://, or "
            "say redis.allow_password_plaintext: true",
        )
