"""Tests of the metrics: they follow Prometheus' conventions, and count correctly.

Source: https://prometheus.io/docs/practices/naming
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import Counter, Histogram, Metric
from prometheus_client.parser import text_string_to_metric_families

from haproc.membership.state import State
from haproc.metrics import ALL, Metrics

ROOT: Final = Path(__file__).parents[2]
BOUNDED: Final = {
    "by": "the ring's clusters",
    "changed": "rows, nothing",
    "cluster": "one",
    "concern": "write concerns",
    "consistency": "read levels",
    "does": "queries, writes, …",
    "finding": "results of a verification",
    "met": "yes, no",
    "operation_class": "classes of operations",
    "outcome": "outcomes",
    "part": "done or applied, and remaining",
    "peer": "the ring's clusters",
    "reason": "reasons, of an enum",
    "ring": "one",
    "state": "states of a HAProc, of a job",
    "way": "mesh, redis",
}
"""Each label with its few possible values. A user, a table or a text is never a label."""
OTHER_UNITS = re.compile(
    r"_(ns|us|ms|s|sec|millis|milliseconds|minutes|hours|days|kb|mb|kib|mib|percent)(_|$)"
)


def families(metrics: Metrics) -> Mapping[str, Metric]:
    """Return the metrics that Prometheus reads, by the name without a counter's ``_total``."""
    return {each.name: each for each in text_string_to_metric_families(metrics.text().decode())}


def exposed(name: str, kind: object) -> set[str]:
    """Return the names of a metric's series, as queries use them."""
    if kind is Counter:
        return {f"{name}_total"}
    return (
        {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind is Histogram else {name}
    )


def series() -> set[str]:
    """Return the names of all series of a HAProc."""
    return {name for each in ALL for name in exposed(each.args[0], each.func)}


def fresh() -> Metrics:
    return Metrics("sales", "a", [state.value for state in State])


def test_exposition_has_each_metric_with_its_type_and_help() -> None:
    found = families(fresh())
    for each in ALL:
        name, text, *_ = each.args
        assert found[name].type == each.func.__name__.lower(), name
        assert found[name].documentation == text
        assert text.endswith("."), f"{name}: help is a sentence"


def test_names_have_the_prefix_and_end_with_a_base_unit_or_the_counted_thing() -> None:
    for each in ALL:
        name, text, *_ = each.args
        assert re.fullmatch(r"haproc(_[a-z]+)+", name), name
        assert not OTHER_UNITS.search(name), f"{name}: base units are seconds and bytes"
        reserved = r"_(total|sum|count|bucket|created|gauge|counter|histogram)$"
        assert not re.search(reserved, name), f"{name}: that ending means something else"
        assert not re.search("_per_|_rate", name), f"{name}: Prometheus computes rates"
        if re.match(r"(Time|When) ", text):
            assert name.endswith("_seconds"), name
        if "offset" in text and "Records" not in text:
            assert name.endswith("_offset"), name
        if re.search(r"\b(bytes|memory)\b", text, re.I) and "Answers" not in text:
            assert name.endswith("_bytes"), name
        assert name.endswith("_bytes") or "_bytes" not in name, f"{name}: the unit comes last"


def test_labels_have_few_values_and_are_not_in_the_name() -> None:
    for each in ALL:
        name, labels = each.args[0], each.args[2] if len(each.args) > 2 else ()
        for label in labels:
            assert label in BOUNDED, f"{name}: which values has the label {label}?"
            assert not name.endswith(f"_by_{label}"), name


def test_cache_evictions_are_a_counter_of_all_evictions_so_far() -> None:
    metrics = fresh()
    metrics.cache(3, 100, {"written": 2})
    metrics.cache(2, 80, {"written": 3, "room": 1})
    metrics.cache(2, 80, {"written": 3, "room": 1})
    found = families(metrics)["haproc_cache_evictions"].samples
    values = {each.labels["reason"]: each.value for each in found if each.name.endswith("_total")}
    assert values == {"written": 3.0, "room": 1.0}


def test_parts_of_a_copy_and_of_a_recovery_sum_up_to_the_whole() -> None:
    metrics = fresh()
    metrics.copied(30, 100)
    metrics.recovery(5, 7)
    found = families(metrics)
    assert sum(each.value for each in found["haproc_copy_bytes"].samples) == 100
    assert sum(each.value for each in found["haproc_recovery_operations"].samples) == 12


def test_promtool_reports_no_problem_in_the_metrics() -> None:
    # Prometheus' own tool; the tests above hold the same rules.
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed")
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=fresh().text(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr + done.stdout) == (0, b"")


def test_metrics_that_the_operators_documents_name_exist() -> None:
    known = series()
    for file in (ROOT / "docs" / "operate").glob("*.md"):
        named = set(re.findall(r"\bhaproc_[a-z_]+[a-z]\b", file.read_text(encoding="utf-8")))
        assert named <= known, f"{file.name} names metrics that do not exist"
