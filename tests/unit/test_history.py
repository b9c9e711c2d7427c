"""Tests of the history: the last minutes of a ring, as the status page shows them."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from haproc.membership.clusters import (
    CHANGES_MAX,
    QUANTILES_S,
    SAMPLES_MAX,
    ClusterView,
    History,
    quantile,
)
from haproc.metrics import LATENCY_BUCKETS_S, Metrics, Totals

NONE = Totals({}, 0, 0, ())
VIEW = ClusterView("a", "", True, True, "READY", "1", 4, 5, 1, True, "", "")


def test_clock_that_steps_back_changes_no_rate_and_keeps_no_sample_longer() -> None:
    history = History()
    for second in range(1000):
        history.sample({}, Totals({}, 0, second, ()), float(second), 5000.0 - second)
    assert history.samples[-1]["applied"] == 1.0
    assert len(history._moments) <= QUANTILES_S + 1


def test_rates_are_computed_from_the_time_between_samples() -> None:
    history = History()
    history.sample({"a": 3}, NONE, 100.0, 100.0)
    history.sample({"a": None}, Totals({"query": 10}, 4, 6, ()), 102.0, 102.0)
    first, second = history.samples
    assert (first["lag"], first["applied"], first["requests"]) == ({"a": 3}, 0.0, {})
    assert (second["at"], second["lag"]) == (102_000, {"a": None})
    assert (second["requests"], second["failed"], second["applied"]) == ({"query": 5.0}, 2.0, 3.0)


def test_samples_and_changes_are_bounded() -> None:
    history = History()
    for number in range(500):
        history.sample({}, NONE, float(number), 7.0)
        view = dataclasses.replace(VIEW, state=f"S{number}")
        assert history.look([view], "now") == (number > 0)
    assert len(history.samples) == SAMPLES_MAX
    assert len(history.changes) == CHANGES_MAX
    assert history.changes[-1] == {
        "at": "now",
        "cluster": "a",
        "before": "S498",
        "after": "S499",
    }


def test_look_reports_no_change_for_unchanged_new_or_removed_clusters() -> None:
    history, other = History(), dataclasses.replace(VIEW, name="b", state="DOWN")
    for views in ([VIEW], [VIEW], [VIEW, other], [VIEW]):
        assert not history.look(views, "now")
    assert history.look([dataclasses.replace(VIEW, state="")], "now")


def test_quantiles_are_those_of_the_last_minute() -> None:
    metrics, history = Metrics("ring", "a", ["READY"]), History()
    history.sample({}, metrics.totals(), 0.0, 0.0)
    for _ in range(100):
        metrics.request("query", "ok", 0.015)
    metrics.request("query", "application", 400.0)
    metrics.request("asynchronous", "refused", 0.001)
    metrics.applied("applied", 5)
    totals = metrics.totals()
    assert (totals.by_class, totals.failed, totals.applied) == (
        {"query": 101, "asynchronous": 1},
        1,
        5,
    )
    history.sample({}, totals, 1.0, 1.0)
    p50_s, p99_s = history.samples[-1]["p50_s"], history.samples[-1]["p99_s"]
    assert isinstance(p50_s, float) and 0.01 < p50_s <= 0.02
    assert isinstance(p99_s, float) and 0.01 < p99_s <= 0.02
    history.sample({}, totals, 100.0, 1.0)
    assert history.samples[-1]["p50_s"] is None


@given(st.lists(st.floats(0.0001, 500.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_quantile_lies_in_the_bucket_of_the_value(took: list[float], share: float) -> None:
    within = [sum(each <= bound for each in took) for bound in LATENCY_BUCKETS_S] + [len(took)]
    found = quantile(within, share)
    assert found is not None
    rank = share * len(took)
    reached = [at for at, count in enumerate(within[:-1]) if count >= rank]
    if not reached:
        assert found == LATENCY_BUCKETS_S[-1]
        return
    lower = LATENCY_BUCKETS_S[reached[0] - 1] if reached[0] else 0.0
    assert lower - 1e-4 <= found <= LATENCY_BUCKETS_S[reached[0]] + 1e-4
