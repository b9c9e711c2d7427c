"""What a configuration must not say about states shared through Redis. Values in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from haproc.config.errors import Finding
from haproc.config.hosts import is_loopback, is_wildcard
from haproc.config.model import Config, Redis, StateWay
from haproc.config.redis import RedisUrl, parse_redis_url

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
