"""A log in Kafka as configuration: the refused settings, and the options of the client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haproc.config.load import ConfigError, load_text
from haproc.config.model import Config, Kafka
from haproc.config.services import kafka_options

ENVIRON = {"RING": "ring-secret-1", "PASSWORD": "kafka-password-1", "KEY": "key-password-1"}
LOCAL = "kafka://127.0.0.1:9092,localhost:9093/demo"
REMOTE = "kafka://k1.example.com:9093,k2.example.com:9093/demo"
BASE = """
ring: demo
log: {log}
secret: {{env: RING}}
clusters:
  - {{name: a, listen: 127.0.0.1:1, peer: 127.0.0.1:2, spark: {{url: "sc://127.0.0.1:3"}}}}
"""
SASL = "sasl_mechanism: SCRAM-SHA-512, sasl_username: haproc, sasl_password: {env: PASSWORD}"


def load(log: str, kafka: str = "", folder: Path = Path("/etc/haproc"), more: str = "") -> Config:
    section = f"kafka: {{{kafka}}}\n" if kafka else ""
    return load_text(BASE.format(log=log) + section + more, folder / "ring.yaml", ENVIRON)


def problems(log: str, kafka: str = "", more: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(log, kafka, more=more)
    assert "kafka-password-1" not in str(caught.value)
    return [re.sub(r" \(line \d+\)$", "", str(problem)) for problem in caught.value.problems]


def test_kafka_log_without_a_section_has_the_safe_defaults() -> None:
    config = load(LOCAL)
    assert config.log == LOCAL and config.kafka == Kafka()
    options = kafka_options(config)
    assert (options.replication_factor, options.min_insync_replicas) == (3, 2)
    assert (options.compression, options.message_bytes_max) == ("", 1 << 20)
    assert options.append_timeout_s == config.timeouts.append_s
    assert dict(options.client) == {"security_protocol": "PLAINTEXT"}


def test_kafka_settings_become_the_options_of_the_client(tmp_path: Path) -> None:
    for name in ("ca.pem", "own.pem", "own.key"):
        (tmp_path / name).write_text("-")
    tls = "ssl_ca_file: ca.pem, ssl_certificate_file: own.pem, ssl_key_file: own.key, "
    tls += "ssl_key_password: {env: KEY}, ssl_check_hostname: false, "
    topic = "replication_factor: 5, min_insync_replicas: 3, compression: zstd, "
    config = load(REMOTE, f"{topic}{tls}security_protocol: SASL_SSL, {SASL}", tmp_path)
    options = kafka_options(config)
    assert (options.replication_factor, options.min_insync_replicas) == (5, 3)
    assert options.compression == "zstd"
    assert dict(options.client) == {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(tmp_path / "ca.pem"),
        "ssl_certfile": str(tmp_path / "own.pem"),
        "ssl_keyfile": str(tmp_path / "own.key"),
        "ssl_password": "key-password-1",
        "ssl_check_hostname": False,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "haproc",
        "sasl_plain_password": "kafka-password-1",
    }
    assert "password-1" not in repr(config) + repr(options)


@pytest.mark.parametrize(
    ("log", "kafka", "path", "message"),
    [
        ("kafka://h:9092/other", "", "log", "the topic is 'other', but a ring's topic has its own"),
        ("kafka://h:9092", "", "log", "is not the URL of a Kafka log"),
        ("kafka://h/demo", "", "log", "'h' is not host:port"),
        ("kafka://user:pw@h:9092/demo", "", "log", "holds credentials"),
        ("kafka://h:9092/de mo", "", "log", "a topic's name has letters"),
        ("kafka://0.0.0.0:9092/demo", "", "log", "nobody can connect to 0.0.0.0"),
        ("kafka://h:99999/demo", "", "log", "a port is 1 to 65535"),
        ("sqlite:x.db", "replication_factor: 1", "kafka", "the log is not in Kafka"),
        (LOCAL, "min_insync_replicas: 4", "kafka.min_insync_replicas", "nothing could be written"),
        (LOCAL, "message_bytes_max: 100", "kafka.message_bytes_max", "at least 16384"),
        (LOCAL, "compression: brotli", "kafka.compression", "none or gzip or snappy"),
        (LOCAL, "security_protocol: TLS", "kafka.security_protocol", "must be PLAINTEXT or SSL"),
        (LOCAL, "sasl_mechanism: GSSAPI", "kafka.sasl_mechanism", "must be PLAIN or SCRAM"),
        (LOCAL, "retention_ms: 5", "kafka.retention_ms", "unknown key"),
        (LOCAL, "sasl_username: x", "kafka.sasl_username", "has no effect"),
        (LOCAL, "ssl_check_hostname: false", "kafka.ssl_check_hostname", "needs SSL or SASL_SSL"),
        (LOCAL, "ssl_key_password: {env: KEY}", "kafka.ssl_key_password", "has no effect"),
        (LOCAL, "sasl_password: geheim", "kafka.sasl_password", "must not stand in this file"),
        (REMOTE, f"security_protocol: SASL_PLAINTEXT, {SASL}", "kafka.security_protocol", "clear"),
        (REMOTE, "security_protocol: SASL_SSL", "kafka.sasl_password", "missing: SASL_SSL"),
        (
            REMOTE,
            "security_protocol: SSL, ssl_ca_file: none.pem",
            "kafka.ssl_ca_file",
            "/etc/haproc/none.pem cannot be read",
        ),
        (
            REMOTE,
            "security_protocol: SSL, ssl_key_password: {env: KEY}",
            "kafka.ssl_key_password",
            "is of no key",
        ),
    ],
)
def test_kafka_contradiction_is_reported_with_its_key(
    log: str, kafka: str, path: str, message: str
) -> None:
    found = problems(log, kafka)
    assert any(each.startswith(f"{path}: ") and message in each for each in found), found


def test_kafka_password_in_clear_is_allowed_on_loopback_or_by_a_setting() -> None:
    section = f"security_protocol: SASL_PLAINTEXT, {SASL}"
    assert load(LOCAL, section).kafka.sasl_username == "haproc"
    assert load(REMOTE, f"{section}, allow_sasl_plaintext: true").kafka.allow_sasl_plaintext


def test_kafka_append_deadline_has_a_maximum() -> None:
    found = problems(LOCAL, more="timeouts: {append_s: 90}\n")
    assert found == ["timeouts.append_s: must be at most 60 with a log in Kafka"]
