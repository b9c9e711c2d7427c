"""Tests that dashboard and alert rules of docker/ fit a HAProc's metrics and the documents."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml

from haproc.membership.state import State
from haproc.metrics import ALL, Metrics
from haproc.node.node import Node
from haproc.node.presence import Presence
from tests.unit.door_rig import make_config
from tests.unit.test_docs import anchors
from tests.unit.test_metrics import exposed

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "docker" / "prometheus"
GROUPS: Final = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
ALERTS: Final[list[dict[str, Any]]] = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD: Final = json.loads((ROOT / "docker/grafana/haproc.json").read_text(encoding="utf-8"))
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
TARGET: Final = {"instance", "job", "ring"}
"""Labels that Prometheus adds to the metrics of a HAProc."""
LABELS: Final = {
    name: TARGET
    | set(each.args[2] if len(each.args) > 2 else ())
    | ({"le"} if name.endswith("_bucket") else set())
    for each in ALL
    for name in exposed(each.args[0], each.func)
} | {"up": TARGET}


def queries() -> Iterator[tuple[str, str]]:
    """Yield the name and the PromQL of each alert and panel."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


QUERIES: Final = list(queries())


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(part: promql_parser.Expr) -> bool:
        if isinstance(part, promql_parser.MatrixSelector):
            found.append(part.vector_selector)
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        return True

    promql_parser.walk(expression, visit)
    return found


@pytest.mark.parametrize(("name", "query"), QUERIES, ids=[name for name, _ in QUERIES])
def test_query_parses_and_uses_metrics_and_labels_that_exist(name: str, query: str) -> None:
    found = selectors(promql_parser.parse(query))
    assert found
    labels = set[str]()
    for selector in found:
        assert selector.name in LABELS, f"{name}: there is no {selector.name}"
        labels |= LABELS[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in LABELS[selector.name], f"{name}: {selector.name}, {matcher.name}"
            if selector.name == "haproc_state" and matcher.name == "state":
                assert set(matcher.value.split("|")) <= set(State), matcher.value
    grouped = re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", query)
    assert {label.strip() for each in grouped for label in each.split(",")} <= labels, name


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_alert_has_a_severity_a_valid_summary_and_an_existing_runbook(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    summary = rule["annotations"]["summary"]
    labels = set[str]().union(
        *(LABELS[each.name] for each in selectors(promql_parser.parse(rule["expr"])) if each.name)
    )
    assert summary.endswith(".") and summary.count("{{") == summary.count("}}")
    assert set(re.findall(r"\$labels\.(\w+)", summary)) <= labels
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors(ROOT / file), rule["annotations"]["runbook"]


def test_state_that_needs_an_operator_has_an_alert() -> None:
    watched = " ".join(rule["expr"] for rule in ALERTS)
    for state in (State.STUCK, State.DIVERGED, State.TOO_FAR_BEHIND, State.FENCED):
        assert f'haproc_state{{state="{state}"}} == 1' in watched
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_panels_do_not_overlap_and_query_the_chosen_instances() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = set[tuple[int, int]]()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert 'instance=~"$instance"' in target["expr"], panel["title"]
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert used == variables


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    # Prometheus' own tool.
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed")
    command = [promtool, "check", "config", str(PROMETHEUS / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


async def test_haproc_that_has_just_begun_reports_the_state_starting(tmp_path: Path) -> None:
    text = Node(make_config(tmp_path), "a")._metrics.text().decode()
    assert re.findall(r'haproc_state{state="(\w+)"} 1.0', text) == [State.STARTING]


async def test_ring_without_redis_has_no_series_of_redis(tmp_path: Path) -> None:
    metrics = Metrics("demo", "a", [state.value for state in State])
    presence = Presence(make_config(tmp_path), "a", "1", metrics)
    presence.measure()
    assert 'haproc_transport{way="mesh"} 1.0' in metrics.text().decode()
    assert 'way="redis"' not in metrics.text().decode(), "HAProcNoRedis would fire"
