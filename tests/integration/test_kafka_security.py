"""Tests of TLS and passwords with a real broker: the configuration reaches the Kafka client.

The key in ``tls/`` is used only here; its certificate is for 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dmq import Log, LogError, LogUnavailableError, Record
from dmq.opening import open_log
from haproc.config.load import load_text
from haproc.config.services import kafka_options
from haproc.ring.broker import LocalBroker
from haproc.ring.process import free_port
from haproc.ring.settings import Ports

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

TLS = Path(__file__).parent / "tls"
PASSWORD = "a-password-for-kafka"
SETTINGS = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_haproc="{PASSWORD}";'
    ),
    "listener.name.client.ssl.keystore.type": "PEM",
    "listener.name.client.ssl.keystore.location": str(TLS / "broker.pem"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker that accepts clients only with TLS and a password."""
    ports = Ports(free_port(), free_port(), free_port())
    folder = tmp_path_factory.mktemp("secured")
    made = LocalBroker(1, folder, [ports], "MkU3OEVBNTcwNTJENDM2Qg", settings=SETTINGS)
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.kill()
        asyncio.run(made.wait_gone())


async def opened(broker: LocalBroker, **changed: str) -> Log:
    """Open a new log as a HAProc with this configuration would."""
    kafka = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_file": str(TLS / "ca.pem"),
        "sasl_mechanism": "PLAIN",
        "sasl_username": "haproc",
        "sasl_password": "{env: PASSWORD}",
        "replication_factor": "1",
        "min_insync_replicas": "1",
    }
    ring = f"ring-{uuid.uuid4().hex[:8]}"
    lines = [
        f"ring: {ring}",
        f"log: kafka://{broker.address}/{ring}",
        "secret: {env: PASSWORD}",
        "clusters: [{name: a, listen: 127.0.0.1:1, peer: 127.0.0.1:2, "
        'spark: {url: "sc://127.0.0.1:3"}}]',
        "timeouts: {append_s: 20}",
        "kafka:",
        *(f"  {key}: {value}" for key, value in (kafka | changed).items()),
    ]
    environ = {"PASSWORD": PASSWORD, "WRONG": "another-password"}
    config = load_text("\n".join(lines), TLS / "ring.yaml", environ)
    return await open_log(config.log, kafka=kafka_options(config))


async def test_log_with_tls_and_password_is_written_and_read(broker: LocalBroker) -> None:
    log = await opened(broker)
    try:
        (offset,) = await log.append([Record("k", payload=b"payload")])
        (entry,) = await log.read(offset)
        assert entry.record.payload == b"payload"
    finally:
        await log.close()


async def test_log_with_a_wrong_password_is_refused_without_showing_it(
    broker: LocalBroker,
) -> None:
    # A broker may hang up before it says why.
    why = "Invalid username or password|refuse the user or the password"
    with pytest.raises(LogError, match=why) as caught:
        await opened(broker, sasl_password="{env: WRONG}")
    assert "another-password" not in str(caught.value)


async def test_log_at_a_broker_of_an_unknown_authority_is_unavailable(broker: LocalBroker) -> None:
    with pytest.raises(LogUnavailableError, match="certificate verify failed"):
        await opened(broker, ssl_ca_file=str(TLS / "other-ca.pem"))


async def test_log_without_tls_is_unavailable(broker: LocalBroker) -> None:
    with pytest.raises(LogUnavailableError):
        await opened(broker, security_protocol="SASL_PLAINTEXT", ssl_ca_file="null")
