"""Tests of the requirements on a Kafka log's topic, URL and options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dmq import KafkaOptions, open_log
from dmq.kafka import from_metadata, to_metadata
from dmq.kafka_clients import Clients, secrets
from dmq.kafka_topic import STORE, KafkaUrl, check_options, faults, needed, parse_url
from dmq.log import CURSOR_NOTE_BYTES_MAX, Cursor, LogCorruptError, LogError, LogUnavailableError

OPTIONS = KafkaOptions()
SINGLE = KafkaOptions(replication_factor=1, min_insync_replicas=1)


def test_parse_url_returns_servers_and_topic() -> None:
    assert parse_url("kafka://a:9092,b.example:1/ring-1") == KafkaUrl(
        ("a:9092", "b.example:1"), "ring-1"
    )
    assert parse_url("kafka://[::1]:9092/t").servers == ("[::1]:9092",)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("kafka:ring", "write kafka://"),
        ("kafka://host:9092", "write kafka://"),
        ("kafka://host/ring", "'host' is not host:port"),
        ("kafka://host:9092,/ring", "'' is not host:port"),
        ("kafka://host:9092/", "a topic's name"),
        ("kafka://host:9092/a/b", "a topic's name"),
        ("kafka://host:9092/flüge", "a topic's name"),
        ("kafka://host:9092/..", "a topic's name"),
    ],
)
async def test_open_log_with_a_wrong_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        await open_log(url)


def test_parse_url_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ValueError, match="sasl_plain_password") as caught:
        parse_url("kafka://user:hunter2@host:9092/ring")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (KafkaOptions(min_insync_replicas=4), "min_insync_replicas is 4"),
        (KafkaOptions(min_insync_replicas=0), "min_insync_replicas is 0"),
        (KafkaOptions(message_bytes_max=1000), "message_bytes_max is 1000"),
        (KafkaOptions(append_timeout_s=0), "append_timeout_s is 0"),
        (KafkaOptions(append_timeout_s=600), "append_timeout_s is 600"),
        (KafkaOptions(compression="rar"), "compression is 'rar'"),
    ],
)
def test_check_options_refuses_contradictions(options: KafkaOptions, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        check_options(options)


def test_check_options_accepts_the_defaults() -> None:
    check_options(OPTIONS)
    check_options(SINGLE)


def test_faults_of_a_topic_made_by_haproc_are_none() -> None:
    assert faults("t", 1, 3, needed(OPTIONS), OPTIONS) == []
    assert faults("t", 1, 1, needed(SINGLE), SINGLE) == []


def test_faults_of_a_topic_with_more_than_needed_are_none() -> None:
    settings = needed(OPTIONS) | {"min.insync.replicas": "3", "max.message.bytes": "99999999"}
    assert faults("t", 1, 5, settings, OPTIONS) == []
    # Several copies need no flush, even where the options would do with one.
    assert faults("t", 1, 3, needed(replace(SINGLE, replication_factor=3)), SINGLE) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("min.insync.replicas", "1"),
        ("max.message.bytes", "65536"),
        ("message.timestamp.type", "CreateTime"),
        ("unclean.leader.election.enable", "true"),
        ("retention.ms", ""),
    ],
)
def test_faults_name_a_setting_that_loses_records_with_its_fix(name: str, value: str) -> None:
    found = faults("t", 1, 3, needed(OPTIONS) | {name: value}, OPTIONS)
    assert found[0].startswith(f"{name} is {value}, but must be")
    assert f"--topic t --add-config {name}={needed(OPTIONS)[name]}" in found[1]


def test_faults_name_a_single_copy_without_flush() -> None:
    found = faults("t", 1, 1, needed(SINGLE) | {"flush.messages": "9223372036854775807"}, SINGLE)
    assert "flush.messages=1" in found[-1]


def test_faults_name_wrong_numbers_of_partitions_and_copies() -> None:
    found = faults("t", 3, 2, needed(OPTIONS), OPTIONS)
    assert "3 partitions" in found[0] and "2 copies" in found[1]
    found = faults("t", 1, 1, needed(OPTIONS) | {"flush.messages": "1"}, OPTIONS)
    assert "kafka-reassign-partitions" in found[0]
    assert any("nothing could be appended" in fault for fault in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("delete.retention.ms", "1000"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_faults_of_a_keyed_store_name_a_setting_that_loses_values_with_its_fix(
    name: str, value: str
) -> None:
    wanted = needed(OPTIONS, STORE)
    assert faults("t", 2, 3, wanted, OPTIONS, STORE) == []
    assert faults("t", 2, 3, wanted | {"delete.retention.ms": "999999999"}, OPTIONS, STORE) == []
    found = faults("t", 2, 3, wanted | {name: value}, OPTIONS, STORE)
    assert found[0].startswith(f"{name} is {value}, but must be")
    assert f"--add-config {name}={wanted[name]}" in found[1]
    assert "must have 2" in faults("t", 1, 3, wanted, OPTIONS, STORE)[0]


@pytest.mark.parametrize("name", ["acks", "bootstrap_servers", "sasl_pasword", "group_id"])
def test_check_names_a_forbidden_client_setting_without_its_value(name: str) -> None:
    clients = Clients(("h:1",), "t", KafkaOptions(client={name: "hunter2"}))
    with pytest.raises(ValueError, match=name) as caught:
        clients.check()
    assert "hunter2" not in str(caught.value)


def test_secrets_appear_in_no_repr_and_no_error() -> None:
    client = {"sasl_plain_username": "me", "sasl_plain_password": "hunter2", "ssl_password": "s3"}
    options = KafkaOptions(client=client)
    assert "hunter2" not in repr(options)
    assert sorted(secrets(client)) == ["hunter2", "s3"]
    clients = Clients(("h:1",), "t", options)
    assert "hunter2" not in repr(clients)
    error = clients.error(RuntimeError("cannot log in as me with hunter2"), "doing")
    assert str(error) == "doing at h:1: cannot log in as me with ***"
    assert error.__cause__ is None
    assert isinstance(error, LogUnavailableError)
    assert clients.error(LogError("mine"), "doing").args == ("mine",)


@pytest.mark.parametrize(
    "cursor", [Cursor(7), Cursor(0, "two words ", 3), Cursor(9, "n" * CURSOR_NOTE_BYTES_MAX, 2**53)]
)
def test_metadata_of_a_cursor_is_read_back_and_fits_the_limit(cursor: Cursor) -> None:
    metadata = to_metadata(cursor)
    assert len(metadata) <= 4096
    assert from_metadata(cursor.offset, metadata) == cursor


def test_metadata_of_other_tools_gives_the_offset_alone() -> None:
    assert from_metadata(12, "") == Cursor(12)


@pytest.mark.parametrize("metadata", ["2 0 note", "1 x note", "something"])
def test_metadata_of_unknown_form_is_corrupt(metadata: str) -> None:
    with pytest.raises(LogCorruptError):
        from_metadata(1, metadata)
