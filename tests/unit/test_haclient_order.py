"""The order policies: even load by enumeration, stability by Hypothesis (haclient/choosing.py)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.choosing import (
    NEARER_S,
    NEARER_SHARE,
    Order,
    arrange,
    nearest,
    smoothed,
    spread,
)


def loads(count: int, numbers: range, lost: Collection[int]) -> Counter[int]:
    """Return how many of these clients use each server while some servers are lost."""
    orders = (spread(count, number) for number in numbers)
    return Counter(next(place for place in order if place not in lost) for order in orders)


@pytest.mark.parametrize("count", range(1, 7))
def test_spread_over_all_clients_gives_each_order_once(count: int) -> None:
    orders = [spread(count, number) for number in range(math.factorial(count))]
    assert len(set(orders)) == len(orders)
    assert all(sorted(order) == list(range(count)) for order in orders)


@pytest.mark.parametrize("count", range(1, 7))
def test_spread_loads_the_remaining_servers_evenly_for_any_lost_ones(count: int) -> None:
    clients = math.factorial(count)
    for lost_count in range(count):
        for lost in combinations(range(count), lost_count):
            found = loads(count, range(clients), lost)
            assert set(found.values()) == {clients // (count - lost_count)}, lost


@pytest.mark.parametrize("count", range(2, 20))
def test_spread_has_even_first_and_second_servers_over_consecutive_numbers(count: int) -> None:
    for first in (0, 7, 1000):
        numbers = range(first * count * (count - 1), (first + 1) * count * (count - 1))
        pairs = Counter(spread(count, number)[:2] for number in numbers)
        assert len(pairs) == count * (count - 1) and set(pairs.values()) == {1}


@given(count=st.integers(1, 64), number=st.integers(0, 1 << 128))
def test_spread_is_a_permutation_that_starts_at_the_number_modulo_n(
    count: int, number: int
) -> None:
    order = spread(count, number)
    assert sorted(order) == list(range(count))
    assert order[0] == number % count
    if count > 1:
        assert order[1] == (number + 1 + number // count % (count - 1)) % count


def test_nearest_sorts_by_round_trip_with_unmeasured_servers_last() -> None:
    assert nearest([0.3, None, 0.1, 0.2], None) == (2, 3, 0, 1)
    assert nearest([None, None], 0) == (0, 1)


def test_nearest_keeps_the_first_server_until_another_is_clearly_nearer() -> None:
    assert nearest([0.010, 0.008], 0) == (0, 1)
    assert nearest([0.010, 0.006], 0) == (1, 0)
    assert nearest([0.0010, 0.0001], 0) == (0, 1), "too little to matter"
    assert nearest([None, 0.5], 0) == (1, 0)


times = st.floats(1e-4, 1.0)


@given(
    base=times,
    rounds=st.lists(st.lists(st.floats(1.0, 1.4), min_size=3, max_size=3), min_size=1, max_size=30),
)
def test_nearest_of_similar_servers_never_changes_its_first(
    base: float, rounds: list[list[float]]
) -> None:
    first: int | None = None
    averages: list[float | None] = [None] * 3
    for factors in rounds:
        samples = zip(averages, factors, strict=True)
        averages = [smoothed(before, base * factor) for before, factor in samples]
        order = nearest(averages, first)
        assert first in (None, order[0])
        first = order[0]


@given(before=st.none() | times, samples=st.lists(times, min_size=1))
def test_smoothed_value_stays_between_the_measured_ones(
    before: float | None, samples: list[float]
) -> None:
    measured = [*samples, *([] if before is None else [before])]
    for sample in samples:
        before = smoothed(before, sample)
        assert min(measured) * (1 - 1e-9) <= before <= max(measured) * (1 + 1e-9)


@given(near=times, far=times)
def test_nearest_that_changed_does_not_change_back_at_once(near: float, far: float) -> None:
    if nearest([far, near], 0)[0] == 1:
        assert near <= far * (1 - NEARER_SHARE) and near <= far - NEARER_S
        assert nearest([far, near], 1)[0] == 1


def test_arrange_follows_the_policy() -> None:
    took = [0.3, 0.1]
    assert arrange(Order.ORDERED, 1, took, None) == (0, 1)
    assert arrange(Order.SPREAD, 1, took, None) == (1, 0)
    assert arrange(Order.NEAREST, 0, took, 0) == (1, 0)
