"""States shared through Redis, as configuration: accepted and refused settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haproc.config.load import ConfigError, load_text
from haproc.config.model import Config, Redis, StateWay
from haproc.config.services import RedisUrl, parse_redis_url

ENVIRON = {"RING": "ring-secret-1", "PASSWORD": "redis-password-1"}
BASE = """
ring: demo
log: "memory:"
secret: {env: RING}
clusters:
  - {name: a, listen: 127.0.0.1:1, peer: 127.0.0.1:2, spark: {url: "sc://127.0.0.1:3"}}
"""
LOCAL = "url: redis://127.0.0.1:6379"
PASSWORD = "password: {env: PASSWORD}"


def load(redis: str, more: str = "state: redis") -> Config:
    section = f"redis: {{{redis}}}\n" if redis else ""
    return load_text(BASE + section + more, Path("/etc/haproc/ring.yaml"), ENVIRON)


def problems(redis: str, more: str = "state: redis") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(redis, more)
    assert "redis-password-1" not in str(caught.value)
    return [re.sub(r" \(line \d+\)$", "", str(problem)) for problem in caught.value.problems]


def test_state_is_shared_over_the_mesh_by_default() -> None:
    config = load("", more="")
    assert config.state is StateWay.MESH and config.redis == Redis()


def test_redis_settings_are_read_and_the_password_is_not_shown() -> None:
    config = load(f"url: rediss://redis.example.com, username: haproc, {PASSWORD}")
    assert config.state is StateWay.REDIS
    assert config.redis.password == "redis-password-1"
    assert "redis-password-1" not in repr(config)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("redis://h", RedisUrl((("h", 6379),), "", False, 0)),
        ("rediss://h:7000/3", RedisUrl((("h", 7000),), "", True, 3)),
        ("redis://[::1]:7000", RedisUrl((("::1", 7000),), "", False, 0)),
        ("redis+sentinel://a,b:7/m", RedisUrl((("a", 26379), ("b", 7)), "m", False, 0)),
        ("rediss+sentinel://a/m/2", RedisUrl((("a", 26379),), "m", True, 2)),
    ],
)
def test_redis_url_is_read(text: str, url: RedisUrl) -> None:
    assert parse_redis_url(text) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://h", "is not a URL of a Redis"),
        ("redis://", "is not host:port"),
        ("redis://h:0", "port of 1 to 65535"),
        ("redis://h/x", "a database is a number"),
        ("redis://h/1/2", "a database is a number"),
        ("redis://a,b", "only sentinels"),
        ("redis://user:redis-password-1@h", "must not stand in the URL"),
        ("redis+sentinel://a", "names no master"),
        ("redis://h?ssl=1", "is not a URL of a Redis"),
    ],
)
def test_wrong_redis_url_is_refused(text: str, message: str) -> None:
    (problem,) = problems(f'url: "{text}"')
    assert problem.startswith("redis.url: ") and message in problem


@pytest.mark.parametrize(
    ("redis", "more", "path", "message"),
    [
        (LOCAL, "", "redis", "state would have to be redis"),
        ("", "state: redis", "redis.url", "missing"),
        (
            LOCAL,
            "state: redis\nmembership: {missed_in_a_row: 2}",
            "membership.missed_in_a_row",
            "at least 3",
        ),
        (f"{LOCAL}, key_ttl_s: 0.5", "state: redis", "redis.key_ttl_s", "less than two"),
        ("url: redis://0.0.0.0", "state: redis", "redis.url", "nobody can connect"),
        (f"{LOCAL}, username: u", "state: redis", "redis.password", "missing"),
        (f"{LOCAL}, sentinel_{PASSWORD}", "state: redis", "redis.sentinel_password", "no effect"),
        (f"{LOCAL}, ssl_check_hostname: false", "state: redis", "redis.ssl_check_hostname", "TLS"),
        (f"url: redis://r.example.com, {PASSWORD}", "state: redis", "redis.url", "in clear"),
        (f"{LOCAL}, ssl_ca_file: /no/such", "state: redis", "redis.ssl_ca_file", "cannot be read"),
    ],
)
def test_contradicting_redis_settings_are_refused(
    redis: str, more: str, path: str, message: str
) -> None:
    found = problems(redis, more)
    assert any(each.startswith(f"{path}: ") and message in each for each in found), found


def test_redis_password_in_clear_is_allowed_by_a_setting_or_on_loopback() -> None:
    load(f"url: redis://r.example.com, {PASSWORD}, allow_password_plaintext: true")
    load(f"{LOCAL}, {PASSWORD}")
