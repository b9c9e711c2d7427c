"""The ring's Kafka and Redis as configured, and the checks of their settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dmq.kafka_topic import KafkaOptions, KafkaUrl, parse_url
from haproc.config.model import Compression, Config, Kafka, Redis, StateWay
from haproc.config.sections import is_loopback, is_wildcard
from haproc.config.tree import Finding

# Checks of a log in Kafka. Values in, findings out.


_MESSAGE_BYTES_MIN = 16 << 10
_APPEND_S_MAX = 60.0
_KAFKA_SSL_KEYS = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password")
_SASL_KEYS = ("sasl_mechanism", "sasl_username", "sasl_password")


def check_kafka(config: Config) -> Iterator[Finding]:
    """Yield (key's path, message) for each contradiction in the log's URL and in ``kafka``."""
    if not config.log.startswith("kafka:"):
        if config.kafka != Kafka():
            yield "kafka", f"the log is not in Kafka: log would have to be kafka://…/{config.ring}"
        return
    try:
        url = parse_url(config.log)
    except ValueError as error:
        yield "log", str(error)
        return
    yield from _kafka_place(config, url)
    yield from _topic(config)
    yield from _tls(config.kafka)
    yield from _sasl(config.kafka, url)


def _kafka_place(config: Config, url: KafkaUrl) -> Iterator[Finding]:
    if url.topic != config.ring:
        # Two rings in one topic would apply each other's writes.
        yield (
            "log",
            f"the topic is {url.topic!r}, but a ring's topic has its own name, {config.ring!r}, so "
            "that no two rings share one",
        )
    for server in url.servers:
        host = _host_of(server)
        if is_wildcard(host):
            yield "log", f"nobody can connect to {host}"
        if not 1 <= int(server.rpartition(":")[2]) <= 65535:
            yield "log", f"{server}: a port is 1 to 65535"


def _topic(config: Config) -> Iterator[Finding]:
    kafka = config.kafka
    if kafka.min_insync_replicas > kafka.replication_factor:
        yield (
            "kafka.min_insync_replicas",
            f"{kafka.min_insync_replicas} is more than kafka.replication_factor "
            f"({kafka.replication_factor}): nothing could be written",
        )
    if kafka.message_bytes_max < _MESSAGE_BYTES_MIN:
        yield (
            "kafka.message_bytes_max",
            f"must be at least {_MESSAGE_BYTES_MIN}, not {kafka.message_bytes_max}",
        )
    if config.timeouts.append_s > _APPEND_S_MAX:
        yield "timeouts.append_s", f"must be at most {_APPEND_S_MAX:g} with a log in Kafka"


def _tls(kafka: Kafka) -> Iterator[Finding]:
    if not kafka.security_protocol.tls:
        for key in _KAFKA_SSL_KEYS:
            if getattr(kafka, key):
                yield f"kafka.{key}", _unused(kafka, "SSL or SASL_SSL")
        if not kafka.ssl_check_hostname:
            yield "kafka.ssl_check_hostname", _unused(kafka, "SSL or SASL_SSL")
        return
    if kafka.ssl_key_file and not kafka.ssl_certificate_file:
        yield "kafka.ssl_key_file", "is the key of no certificate: kafka.ssl_certificate_file"
    if kafka.ssl_key_password and not kafka.ssl_certificate_file:
        yield "kafka.ssl_key_password", "is of no key: kafka.ssl_certificate_file, ssl_key_file"


def _sasl(kafka: Kafka, url: KafkaUrl) -> Iterator[Finding]:
    protocol = kafka.security_protocol
    for key in _SASL_KEYS:
        if protocol.sasl and not getattr(kafka, key):
            yield f"kafka.{key}", f"missing: {protocol} needs it"
        if getattr(kafka, key) and not protocol.sasl:
            yield f"kafka.{key}", _unused(kafka, "SASL_SSL")
    outside = [server for server in url.servers if not is_loopback(_host_of(server))]
    if protocol.sasl and not protocol.tls and outside and not kafka.allow_sasl_plaintext:
        yield (
            "kafka.security_protocol",
            f"user and password would cross the network to {outside[0]} in clear: use SASL_SSL, "
            "or say kafka.allow_sasl_plaintext: true",
        )


def _host_of(server: str) -> str:
    return server.rpartition(":")[0].strip("[]")


def _unused(kafka: Kafka, needed: str) -> str:
    return f"has no effect with security_protocol {kafka.security_protocol}: needs {needed}"


# From the configuration's names to those of the Kafka client.


def kafka_options(config: Config) -> KafkaOptions:
    """Return the options for opening a Kafka log; a log of another kind ignores them."""
    kafka = config.kafka
    return KafkaOptions(
        replication_factor=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
        message_bytes_max=kafka.message_bytes_max,
        compression="" if kafka.compression is Compression.NONE else str(kafka.compression),
        append_timeout_s=config.timeouts.append_s,
        client=_client(kafka),
    )


def _client(kafka: Kafka) -> dict[str, object]:
    """Return kafka-python's connection settings, without those that are not needed."""
    settings: dict[str, object] = {"security_protocol": str(kafka.security_protocol)}
    if kafka.security_protocol.tls:
        settings["ssl_check_hostname"] = kafka.ssl_check_hostname
        for name, file in (
            ("ssl_cafile", kafka.ssl_ca_file),
            ("ssl_certfile", kafka.ssl_certificate_file),
            ("ssl_keyfile", kafka.ssl_key_file),
        ):
            if file is not None:
                settings[name] = str(file)
        if kafka.ssl_key_password:
            settings["ssl_password"] = kafka.ssl_key_password
    if kafka.security_protocol.sasl:
        settings["sasl_mechanism"] = str(kafka.sasl_mechanism)
        settings["sasl_plain_username"] = kafka.sasl_username
        settings["sasl_plain_password"] = kafka.sasl_password
    return settings


# The address of a ring's Redis, from the configuration's URL.


_PORT = 6379
_SENTINEL_PORT = 26379
_FORM = (
    "redis://host:port/0, or redis+sentinel://host:port,host:port/NAME with the name that the "
    "sentinels have for it; rediss:// and rediss+sentinel:// for TLS"
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The Redis server of a URL, or the sentinels that know the present server of ``master``."""

    servers: tuple[tuple[str, int], ...]
    master: str
    """The name of the server's group at the sentinels; empty if the URL names no sentinels."""
    tls: bool
    database: int

    @property
    def shown(self) -> str:
        """The servers' addresses, as a text for people."""
        return ", ".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.servers)


def parse_redis_url(text: str) -> RedisUrl:
    """Read the URL of a Redis; raises ValueError with the reason, which has no password in it."""
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


# Checks of states that are shared through Redis. Values in, findings out.


_MISSED_IN_A_ROW_MIN = 3
"""The least value of ``missed_in_a_row`` with a Redis. With fewer, peers would count as silent
before the mesh takes over from a lost Redis."""
_REDIS_SSL_KEYS = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")


def check_redis(config: Config) -> Iterator[Finding]:
    """Yield (key's path, message) for each contradiction in ``state`` and ``redis``."""
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
    yield from _redis_place(url)
    yield from _access(redis, url)


def _redis_place(url: RedisUrl) -> Iterator[Finding]:
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
        for key in _REDIS_SSL_KEYS:
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
