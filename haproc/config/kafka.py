"""The log in Kafka as configured: what must not be said of it, and the client's names for it."""

from __future__ import annotations

from collections.abc import Iterator

from dmq.kafka_topic import KafkaOptions, KafkaUrl, parse_url
from haproc.config.hosts import is_loopback, is_wildcard
from haproc.config.model import Compression, Config, Kafka
from haproc.config.tree import Finding

# What a configuration must not say about a log in Kafka. Values in, findings out.


_MESSAGE_BYTES_MIN = 16 << 10
_APPEND_S_MAX = 60.0
_SSL_KEYS = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password")
_SASL_KEYS = ("sasl_mechanism", "sasl_username", "sasl_password")


def check_kafka(config: Config) -> Iterator[Finding]:
    """Yield what contradicts itself in the log's URL and in ``kafka``."""
    if not config.log.startswith("kafka:"):
        if config.kafka != Kafka():
            yield "kafka", f"the log is not in Kafka: log would have to be kafka://…/{config.ring}"
        return
    try:
        url = parse_url(config.log)
    except ValueError as error:
        yield "log", str(error)
        return
    yield from _place(config, url)
    yield from _topic(config)
    yield from _tls(config.kafka)
    yield from _sasl(config.kafka, url)


def _place(config: Config, url: KafkaUrl) -> Iterator[Finding]:
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
        for key in _SSL_KEYS:
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
    """Return what a Kafka log needs to know; without meaning for other logs."""
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
    """Return kafka-python's settings of the connection; what is not needed is left out."""
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
