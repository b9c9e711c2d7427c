"""From the configuration's names to those of the Kafka client."""

from __future__ import annotations

from dmq.kafka_options import KafkaOptions
from haproc.config.model import Compression, Config, Kafka


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
