"""Tests that the files for Compose, Kubernetes and systemd are valid and fit the configuration.

Properties that only an engine, a cluster or a running systemd could show are not tested here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from haproc.config.load import load_text
from haproc.config.model import Config, Timeouts
from haproc.node.node import ExitCode
from tests.certificates import Authority
from tests.unit.test_monitoring import ALERTS

DOCKER: Final = Path(__file__).parents[2] / "docker"
KUBERNETES: Final = DOCKER / "kubernetes"
UNITS: Final = DOCKER / "systemd"
KUBERNETES_VERSION: Final = "1.34"
"""The oldest version whose schemas are checked, besides the newest available one."""
SECRETS: Final = "/run/secrets/"


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


def manifests() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{file.stem}: {each['kind']} {each['metadata']['name']}", each)
        for file in sorted(KUBERNETES.glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
    ]


MANIFESTS: Final = manifests()


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for _, each in MANIFESTS if each["kind"] == kind}


def mounted(tmp_path: Path, text: str) -> Config:
    """Load a configuration whose secrets are at their places in a container."""
    for file in set(re.findall(rf"{SECRETS}([\w./-]+)", text)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"secret-of-{file.replace('/', '-')}")
    if "tls:" in text:
        authority = Authority(tmp_path)
        pair = authority.issue("door")
        for file, made in (
            ("tls.crt", pair.certificate),
            ("tls.key", pair.key),
            ("ca.crt", authority.file),
        ):
            shutil.copy(made, tmp_path / "haproc-tls" / file)
    return load_text(text.replace(SECRETS, f"{tmp_path}/"), tmp_path / "ring.yaml", {})


# -- Compose -----------------------------------------------------------------------------------


def test_compose_file_is_valid() -> None:
    # Anchors are merged first: the parser takes no "<<".
    PyCompose.from_json(json.dumps(compose())).to_spec()
    wrong = compose()
    wrong["services"]["redis"]["helthcheck"] = {}
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_json(json.dumps(wrong))


def test_prometheus_scrapes_the_operator_doors_of_the_ring(tmp_path: Path) -> None:
    ring = mounted(tmp_path, (DOCKER / "ring.yaml").read_text())
    prometheus = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text())
    (job,) = prometheus["scrape_configs"]
    (targets,) = job["static_configs"]
    assert targets["targets"] == [
        f"{cluster.peer.host}:{cluster.peer.port}" for cluster in ring.clusters
    ]
    assert targets["labels"] == {"ring": ring.ring} and job["honor_labels"]
    (away,) = [rule for rule in ALERTS if rule["alert"] == "HAProcAway"]
    assert f'job="{job["job_name"]}"' in away["expr"]
    service = compose()["services"]["prometheus"]
    assert "./prometheus:/etc/prometheus:ro" in service["volumes"]
    for file in ("prometheus.yaml", *prometheus["rule_files"]):
        assert (DOCKER / "prometheus" / file).is_file()


def test_grafana_finds_its_data_source_and_the_dashboard() -> None:
    source = yaml.safe_load((DOCKER / "grafana/datasource.yaml").read_text())["datasources"][0]
    prometheus = compose()["services"]["prometheus"]
    assert source["url"] == f"http://{prometheus['hostname']}:9090"
    provider = yaml.safe_load((DOCKER / "grafana/dashboards.yaml").read_text())["providers"][0]
    mounts = [each.split(":") for each in compose()["services"]["grafana"]["volumes"]]
    files = {there: DOCKER / here for here, there, *_ in mounts if here.startswith("./")}
    assert all(file.is_file() for file in files.values())
    folders = {str(Path(there).parent) for there in files}
    assert provider["options"]["path"] in folders
    assert {
        "/etc/grafana/provisioning/datasources",
        "/etc/grafana/provisioning/dashboards",
    } <= folders


# -- Kubernetes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "manifest"), MANIFESTS, ids=[name for name, _ in MANIFESTS])
def test_manifest_is_valid_by_its_schema(name: str, manifest: dict[str, Any]) -> None:
    for version in (KUBERNETES_VERSION, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = manifest | {"speck": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSION, strict=True)


@pytest.fixture
def ring(tmp_path: Path) -> Config:
    return mounted(tmp_path, of_kind("ConfigMap")["haproc-ring"]["data"]["ring.yaml"])


def test_cluster_has_its_haproc_at_the_address_in_the_rings_configuration(ring: Config) -> None:
    sets, services = of_kind("StatefulSet"), of_kind("Service")
    assert list(sets) == [f"haproc-{cluster.name}" for cluster in ring.clusters]
    for cluster in ring.clusters:
        name = f"haproc-{cluster.name}"
        spec, metadata = sets[name]["spec"], sets[name]["metadata"]
        host = f"{name}-0.{spec['serviceName']}.{metadata['namespace']}.svc.cluster.local"
        assert cluster.connect is not None
        assert {cluster.listen.host, cluster.peer.host, cluster.connect.host} == {host}
        pod = spec["template"]
        (container,) = pod["spec"]["containers"]
        assert container["args"][-2:] == ["--cluster", cluster.name]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports == {
            "clients": cluster.listen.port,
            "peers": cluster.peer.port,
            "connect": cluster.connect.port,
        }
        service = services[spec["serviceName"]]["spec"]
        assert {each["name"]: each["port"] for each in service["ports"]} == ports
        assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
        labels = pod["metadata"]["labels"]
        assert service["selector"] == spec["selector"]["matchLabels"] == labels
        assert (spec["replicas"], spec["updateStrategy"]) == (1, {"type": "OnDelete"})


def test_manifests_of_haprocs_differ_only_in_the_cluster_name() -> None:
    texts = {
        re.sub(rf"(haproc-|cluster:? |--cluster, |drain ){cluster}\b", r"\1X", file.read_text())
        for cluster in "abc"
        for file in [KUBERNETES / f"haproc-{cluster}.yaml"]
    }
    assert len(texts) == 1


def test_pod_mounts_exist_and_include_the_files_that_the_ring_reads(ring: Config) -> None:
    text = of_kind("ConfigMap")["haproc-ring"]["data"]["ring.yaml"]
    read = {str(Path(file).parent) for file in re.findall(rf"{SECRETS}[\w./-]+", text)}
    for stateful in of_kind("StatefulSet").values():
        pod = stateful["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        paths = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        claims = {each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]}
        assert paths.keys() == volumes.keys() | claims
        assert {paths[name] for name, each in volumes.items() if "secret" in each} == read
        assert paths["state"] == str(ring.state_dir)
        assert volumes["ring"]["configMap"]["name"] in of_kind("ConfigMap")
        assert container["args"][2].startswith(paths["ring"] + "/")
    readme = (DOCKER / "README.md").read_text()
    for key in set(re.findall(rf"{SECRETS}haproc(?:-tls)?/([\w.-]+)", text)):
        assert f"--from-file={key}=" in readme, f"README: how is {key} made?"


def test_pods_have_probes_restricted_rights_and_enough_time_to_drain() -> None:
    for stateful in of_kind("StatefulSet").values():
        pod = stateful["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == Timeouts().drain_s + 10
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        assert (
            f"--uid {pod['securityContext']['runAsUser']} " in (DOCKER / "Dockerfile").read_text()
        )
        for probe, path in (
            ("startupProbe", "/healthz"),
            ("livenessProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
        ):
            # The client door is closed while its cluster is down.
            expected = {"path": path, "port": "peers", "scheme": "HTTPS"}  # as the ring has `tls`
            assert container[probe]["httpGet"] == expected
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}


def test_policy_budget_and_services_select_the_haprocs() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in of_kind("StatefulSet").values()
    ]
    policy = of_kind("NetworkPolicy")["haproc"]["spec"]
    budget = of_kind("PodDisruptionBudget")["haproc"]["spec"]
    chosen = [
        policy["podSelector"]["matchLabels"],
        budget["selector"]["matchLabels"],
        of_kind("Service")["haproc"]["spec"]["selector"],
        of_kind("Service")["haproc-connect"]["spec"]["selector"],
    ]
    assert all(each.items() <= of.items() for each in chosen for of in labels)
    assert budget["maxUnavailable"] == 1
    doors = [{port["port"] for port in rule["ports"]} for rule in policy["ingress"]]
    assert doors == [{"clients", "connect"}, {"peers"}]
    assert of_kind("Service")["haproc-connect"]["spec"]["clusterIP"] == "None"
    assert {each["metadata"].get("namespace", "haproc") for _, each in MANIFESTS} == {"haproc"}


# -- systemd -----------------------------------------------------------------------------------


def setting(unit: Path, key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(value)


def test_systemd_unit_does_not_restart_a_haproc_that_needs_an_operator() -> None:
    unit = UNITS / "haproc@.service"
    assert setting(unit, "RestartPreventExitStatus") == f"2 {ExitCode.FENCED}"
    assert setting(unit, "Restart") == "on-failure"
    assert float(setting(unit, "TimeoutStopSec")) == Timeouts().drain_s + 10
    assert setting(unit, "Type") == "exec"  # it does not notify systemd
    assert setting(unit, "ExecStart").endswith("--cluster %i")


def test_systemd_units_are_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    for unit in UNITS.glob("*.service"):
        # Programs and users of a host on which all is installed.
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
        copy = tmp_path / unit.name.replace("@", "@zurich")
        copy.write_text(re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.M))
        done = subprocess.run(
            [analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), unit.name
