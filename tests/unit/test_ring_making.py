"""A local ring's folder is made once: its log and settings never change by a later start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haproc.cli.main import main
from haproc.config.jobs import Isolation
from haproc.ring.local import LocalRing, LogChoice
from haproc.ring.making import CERTIFICATE, token_file
from haproc.ring.settings import RingError, properties


def make(folder: Path, log: LogChoice, clusters: int = 2, base_port: int = 7000) -> LocalRing:
    return LocalRing.open_or_create(folder, clusters=clusters, base_port=base_port, log=log)


def test_ring_without_a_choice_has_a_file_log_and_no_brokers(tmp_path: Path) -> None:
    ring = make(tmp_path, LogChoice())
    assert ring.config.log == f"sqlite://{tmp_path.resolve()}/log.db"
    assert ring.kafka is None and not ring.brokers


def test_ring_gives_its_sparks_the_chosen_settings_after_reopening(tmp_path: Path) -> None:
    chosen = {"spark.sql.shuffle.partitions": "8", "spark.app.comment": "C:\\new"}
    LocalRing.open_or_create(tmp_path, clusters=2, base_port=7000, spark_settings=chosen)
    for spark in LocalRing.open(tmp_path).sparks.values():
        assert chosen.items() <= spark.settings.items()
        assert spark.settings["spark.databricks.delta.snapshotPartitions"] == "1"
    # As java.util.Properties reads it.
    assert "\nspark.app.comment C:\\\\new\n" in properties(spark.settings)
    LocalRing.open_or_create(tmp_path)
    with pytest.raises(RingError, match="has other settings of Spark: change it in its"):
        LocalRing.open_or_create(tmp_path, spark_settings={"spark.sql.shuffle.partitions": "9"})


def test_ring_checks_settings_that_were_changed_by_hand(tmp_path: Path) -> None:
    ring = LocalRing.open_or_create(tmp_path, clusters=2, base_port=7000)
    file = ring.folder / "spark.yaml"
    file.write_text("{memory: 1g, cores: 2, settings: {spark.sql.shuffle.partitions: 9}}")
    sparks = LocalRing.open(tmp_path).sparks
    assert sparks["a"].settings["spark.sql.shuffle.partitions"] == "9"
    file.write_text("{memory: 1g, cores: 2, settings: {spark.master: yarn}}")
    with pytest.raises(RingError, match=r"spark\.master can't be chosen"):
        LocalRing.open(tmp_path)
    file.write_text("{memory: 1g, cores: 2}")  # of a ring made before there were any
    assert LocalRing.open(tmp_path).spark_settings == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sql.shuffle.partitions", "8", "no setting of Spark"),
        ("spark.a b", "8", "no setting of Spark"),
        ("spark.master", "local[1]", "can't be chosen: a local ring sets it itself"),
        ("spark.connect.grpc.binding.address", "0.0.0.0", "can't be chosen"),
        ("spark.app.comment", "1\nspark.master x", "a value is one line"),
        ("spark.app.comment", "", "a value is one line"),
    ],
)
def test_ring_with_forbidden_spark_settings_is_not_made(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    with pytest.raises(RingError, match=message):
        LocalRing.open_or_create(tmp_path, spark_settings={key: value})
    assert not list(tmp_path.iterdir())


def test_ring_up_with_a_setting_without_a_value_reports_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["ring", "up", "--conf", "spark.master"])
    assert "'spark.master' is not KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"clusters": 3}, "has 2 clusters: haproc cluster add"),
        ({"memory": "2g"}, "has Sparks of 1g: change it in its spark.yaml"),
        ({"cores": 4}, "has Sparks of 2 cores: change it in its spark.yaml"),
        ({"users": ["bob"]}, "has no user bob: haproc token"),
    ],
)
def test_ring_that_differs_from_the_wanted_one_is_refused(
    tmp_path: Path, wanted: dict[str, Any], message: str
) -> None:
    LocalRing.open_or_create(tmp_path, clusters=2, base_port=7000)
    with pytest.raises(RingError, match=message):
        LocalRing.open_or_create(tmp_path, **wanted)
    LocalRing.open_or_create(tmp_path, clusters=2, base_port=7001, memory="1g", cores=2)


def test_ring_accepts_jobs_only_if_it_was_made_with_jobs(tmp_path: Path) -> None:
    LocalRing.open_or_create(tmp_path / "1", clusters=1, base_port=7000)
    with pytest.raises(RingError, match="takes no jobs: set jobs"):
        LocalRing.open_or_create(tmp_path / "1", jobs=True)
    LocalRing.open_or_create(tmp_path / "2", clusters=1, base_port=7000, jobs=True)
    again = LocalRing.open_or_create(tmp_path / "2", jobs=True)
    assert again.config.jobs.enabled
    assert again.config.jobs.isolation is Isolation.BUBBLEWRAP


def test_ring_with_its_own_brokers_finds_them_after_reopening(tmp_path: Path) -> None:
    ring = make(tmp_path, LogChoice("kafka", brokers=3))
    assert ring.config.log == "kafka://127.0.0.1:7006,127.0.0.1:7009,127.0.0.1:7012/local"
    assert (ring.config.kafka.replication_factor, ring.config.kafka.min_insync_replicas) == (3, 2)
    assert list(ring.brokers) == ["broker1", "broker2", "broker3"]
    again = LocalRing.open(tmp_path)
    assert [b.address for b in again.brokers.values()] == [b.address for b in ring.brokers.values()]
    assert again.pids("broker1") == {"broker": None}
    assert not again.kill("broker1", "broker")


def test_ring_with_one_broker_requires_one_copy(tmp_path: Path) -> None:
    ring = make(tmp_path, LogChoice("kafka"))
    assert (ring.config.kafka.replication_factor, ring.config.kafka.min_insync_replicas) == (1, 1)


def test_ring_uses_the_advertised_ports_of_its_brokers(tmp_path: Path) -> None:
    ring = make(tmp_path, LogChoice("kafka", brokers=1, advertised_ports=[7999]))
    assert ring.config.log == "kafka://127.0.0.1:7999/local"
    assert ring.brokers["broker1"].ports.client == 7006


def test_ring_at_an_external_kafka_has_a_unique_name(tmp_path: Path) -> None:
    servers = "k1.example.com:9092,k2.example.com:9092"
    one = make(tmp_path / "1", LogChoice(bootstrap_servers=servers, replication_factor=1))
    two = make(tmp_path / "2", LogChoice(bootstrap_servers=servers), base_port=7100)
    assert one.config.log == f"kafka://{servers}/{one.config.ring}"
    assert one.config.ring != two.config.ring
    assert (one.config.kafka.replication_factor, two.config.kafka.replication_factor) == (1, 3)
    assert not one.brokers


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (LogChoice(), LogChoice("kafka"), "has its log in sqlite, not in kafka"),
        (LogChoice(), LogChoice(brokers=1), "has its log in sqlite, not in kafka"),
        (LogChoice("kafka"), LogChoice("sqlite"), "has its log in kafka, not in sqlite"),
        (LogChoice("kafka"), LogChoice(brokers=3), "has 1 broker of its own"),
        (LogChoice("kafka"), LogChoice(bootstrap_servers="h:1"), "has its log at kafka://127"),
        (LogChoice(bootstrap_servers="h:1"), LogChoice(brokers=1), "has 0 brokers of its own"),
    ],
)
def test_folder_with_a_different_log_is_refused(
    tmp_path: Path, first: LogChoice, second: LogChoice, message: str
) -> None:
    made = make(tmp_path, first)
    with pytest.raises(RingError, match=message):
        make(tmp_path, second)
    assert make(tmp_path, first).config == make(tmp_path, LogChoice()).config == made.config


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (LogChoice("redis"), "unknown kind of log 'redis'"),
        (LogChoice("sqlite", brokers=1), "has no brokers"),
        (LogChoice(brokers=1, bootstrap_servers="h:1"), "either brokers of the ring's own"),
        (LogChoice(brokers=9), "1 to 5 brokers, not 9"),
        (LogChoice("kafka", replication_factor=2), "goes with --bootstrap-servers"),
    ],
)
def test_contradictory_log_choice_is_refused(
    tmp_path: Path, choice: LogChoice, message: str
) -> None:
    with pytest.raises(RingError, match=message):
        make(tmp_path, choice)
    assert not (tmp_path / "ring.yaml").exists()


def test_invalid_bootstrap_servers_are_reported_and_leave_no_ring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["ring", "up", "--folder", str(tmp_path), "--bootstrap-servers", "k1"]
    assert main(options) == 1
    assert "'k1' is not host:port" in capsys.readouterr().err
    assert not (tmp_path / "ring.yaml").exists()


def test_kill_of_an_unknown_part_lists_all_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, LogChoice("kafka"))
    assert main(["ring", "kill", "broker7", "--folder", str(tmp_path)]) == 1
    assert "the ring has no 'broker7'; it has a, b, broker1" in capsys.readouterr().err


def test_ring_has_spark_connect_doors_at_the_ports_after_its_others(tmp_path: Path) -> None:
    ring = make(tmp_path, LogChoice())
    assert ring.spark_url == "sc://127.0.0.1:7006,127.0.0.1:7007"
    assert ring.urls == "http://127.0.0.1:7000,http://127.0.0.1:7003"
    assert not ring.config.users and not ring.config.tls.enabled


def test_ring_with_users_has_tokens_and_a_certificate(tmp_path: Path) -> None:
    ring = LocalRing.open_or_create(tmp_path, clusters=1, base_port=7000, users=["alice"])
    (alice,) = ring.config.users
    assert (tmp_path / token_file("alice")).read_text() == alice.token
    assert (tmp_path / token_file("alice")).stat().st_mode & 0o077 == 0
    certificate = tmp_path.resolve() / CERTIFICATE
    assert ring.config.tls.certificate_file == ring.config.tls.ca_file == certificate
    assert ring.urls == "https://127.0.0.1:7000"
    assert b"BEGIN CERTIFICATE" in (tmp_path / CERTIFICATE).read_bytes()


def test_ring_with_an_invalid_user_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="is no user's name"):
        LocalRing.open_or_create(tmp_path, clusters=1, users=["../x"])
