"""The files of docker/ fit together: services, ports, names, secrets and the ring's configuration.

Building and running need a Docker engine and are not tested here.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from haproc.config.load import load_text
from haproc.config.model import Config, StateWay
from haproc.config.sections import is_loopback
from haproc.config.services import parse_redis_url
from haproc.engine import server
from haproc.ring.runtime import KAFKA_JARS
from haproc.ring.settings import CATALOG_OPTIONS, MESSAGE_BYTES_MAX, spark_server_settings

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SECRETS = "/run/secrets/"


def of_kind(prefix: str) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in SERVICES.items() if name.startswith(prefix)}


@pytest.fixture
def ring(tmp_path: Path) -> Config:
    """The mounted configuration, with secrets as Docker would provide them."""
    for name in COMPOSE["secrets"]:
        (tmp_path / name).write_text(f"{name}-secret")
    text = (DOCKER / "ring.yaml").read_text().replace(SECRETS, f"{tmp_path}/")
    return load_text(text, DOCKER / "ring.yaml", {})


def test_compose_file_has_three_services_of_each_kind_and_one_redis() -> None:
    assert [len(of_kind(kind)) for kind in ("kafka", "spark-", "haproc-", "redis")] == [3, 3, 3, 1]


def test_each_cluster_has_its_haproc_and_spark_service(ring: Config) -> None:
    assert {f"haproc-{cluster.name}" for cluster in ring.clusters} == set(of_kind("haproc-"))
    for cluster in ring.clusters:
        service = SERVICES[f"haproc-{cluster.name}"]
        assert service["command"][-2:] == ["--cluster", cluster.name]
        assert service["hostname"] == cluster.listen.host == cluster.peer.host
        assert cluster.spark.host == SERVICES[f"spark-{cluster.name}"]["hostname"]
        assert f"EXPOSE {cluster.spark.port}" in DOCKERFILE
        assert f"EXPOSE {cluster.listen.port} {cluster.peer.port}" in DOCKERFILE
        assert f":{cluster.peer.port}/healthz" in DOCKERFILE
        (port,) = service["ports"]
        assert port.endswith(f":{cluster.listen.port}")
        mounted = [volume.split(":")[:2] for volume in service["volumes"]]
        assert ["./ring.yaml", service["command"][2]] in mounted
        assert [f"haproc-{cluster.name}", str(ring.state_dir)] in mounted


def test_secrets_are_provided_to_the_services_that_read_them(ring: Config) -> None:
    read = set(re.findall(rf"{SECRETS}([\w-]+)", (DOCKER / "ring.yaml").read_text()))
    for service in of_kind("haproc-").values():
        assert set(service["secrets"]) == read
    for cluster in ring.clusters:
        spark = SERVICES[f"spark-{cluster.name}"]
        (secret,) = spark["secrets"]
        assert spark["environment"]["TOKEN_FILE"] == f"{SECRETS}{secret}"
        assert cluster.spark.token == f"{secret}-secret"
    script = (DOCKER / "make-secrets").read_text()
    secret_names = re.search(r"^for name in (.*); do", script, re.MULTILINE)
    assert secret_names is not None and set(secret_names[1].split()) == set(COMPOSE["secrets"])
    (grafana,) = SERVICES["grafana"]["secrets"]
    assert set(COMPOSE["secrets"]) == read | {grafana}
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"].endswith(grafana)


def test_brokers_match_the_log_url_and_each_other(ring: Config) -> None:
    servers = ring.log.removeprefix("kafka://").partition("/")[0].split(",")
    voters, advertised = [], []
    for name, service in of_kind("kafka").items():
        environment = service["environment"]
        advertised.append(environment["KAFKA_ADVERTISED_LISTENERS"].removeprefix("PLAINTEXT://"))
        voters.append(f"{environment['KAFKA_NODE_ID']}@{name}:9093")
        assert service["hostname"] == name
        assert service["volumes"] == [f"{name}:{environment['KAFKA_LOG_DIRS']}"]
        assert service["image"] == f"apache/kafka:{KAFKA_JARS[0].revision}"
    assert advertised == servers
    for service in of_kind("kafka").values():
        assert service["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"] == ",".join(voters)
    assert ring.kafka.replication_factor <= len(servers)


def test_redis_service_is_the_one_of_the_ring_configuration(ring: Config) -> None:
    assert ring.state is StateWay.REDIS
    assert parse_redis_url(ring.redis.url).servers == ((SERVICES["redis"]["hostname"], 6379),)
    assert "[server,kafka,redis,otel]" in DOCKERFILE


def test_published_ports_are_those_for_people_and_on_loopback() -> None:
    published = {
        name: port for name, service in SERVICES.items() for port in service.get("ports", [])
    }
    assert set(published) == {*of_kind("haproc-"), "prometheus", "grafana"}
    assert all(is_loopback(port.split(":")[0]) for port in published.values())
    assert len(set(published.values())) == len(published)


def test_volumes_and_dependencies_exist_and_everything_has_a_health_check() -> None:
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(COMPOSE["volumes"])
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        target = service.get("build", {}).get("target")
        if target is None:
            assert service["healthcheck"]["test"]
        else:
            stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
            assert "HEALTHCHECK" in stage and "\nUSER haproc\n" in stage


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    sent = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        for file in line.split():
            assert (DOCKER.parent / file).exists() and f"!{file}" in sent, file


def test_spark_settings_that_change_meaning_equal_those_of_local_rings() -> None:
    lines = (DOCKER / "spark-connect.conf").read_text().splitlines()
    conf = dict(line.split() for line in lines if line and not line.startswith("#"))
    local = spark_server_settings("a", Path("/data"), 15002, 2)
    for key, value in conf.items():
        if key != "spark.connect.grpc.binding.address":
            assert local[key] == value, key
    assert conf.keys() >= {server.EXTENSION_SETTING, server.READER_SETTING}
    assert conf["spark.connect.grpc.maxInboundMessageSize"] == str(MESSAGE_BYTES_MAX)
    assert " ".join(CATALOG_OPTIONS) in (DOCKER / "spark-connect").read_text()


def test_modules_mentioned_outside_the_code_exist() -> None:
    root = DOCKER.parent
    folders = ["docker", "scripts", ".ci", "Makefile", "pyproject.toml"]
    listed = ["git", "ls-files", *folders]
    files = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True)
    text = "\n".join((root / name).read_text() for name in files.stdout.split())
    run = re.findall(r"-m (haproc[\w.]*)", text)
    assert "haproc.ring.prepare" in run
    for module in run:
        assert importlib.util.find_spec(module), module
    for module, name in re.findall(r"from (haproc[\w.]*) import (\w+)", text):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
