"""In which order a client asks its servers; numbers in, places in its list out.

``ordered``: as listed. ``spread``: each client's order is a permutation of its own, so that all
servers have as many clients, and those of a lost server go to the others evenly. ``nearest``: by
the round trip of a small request, smoothed, and the first place is kept until another server is
clearly nearer, so that two alike do not take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

SMOOTHING = 0.3
"""A new sample's share in the average; chosen, not measured."""
NEARER_SHARE = 0.3
NEARER_S = 0.001
"""A server takes the first place if it is nearer by both; chosen, not measured."""


class Order(StrEnum):
    """How a client orders its servers."""

    ORDERED = "ordered"
    SPREAD = "spread"
    NEAREST = "nearest"


def spread(count: int, number: int) -> tuple[int, ...]:
    """Return the order of the client with this number: ``(i + j + k) mod n`` for its j-th server.

    ``i = number mod n`` is its start; each further digit k of the number, to the bases n-1, n-2,
    …, says how many of the servers that are left it passes over, counting on from the one before.
    The n! first numbers give each permutation once, and so do the next. Hence the clients whose
    first servers are lost, whichever and however many these are, go to the rest in equal parts;
    for one lost server n * (n - 1) clients with numbers in a row are enough.
    """
    left = list(range(count))
    found: list[int] = []
    place = 0
    while left:
        number, passed_over = divmod(number, len(left))
        place = (place + passed_over) % len(left)
        found.append(left.pop(place))
    return tuple(found)


def smoothed(before_s: float | None, sample_s: float) -> float:
    """Return the moving average with one more sample."""
    return sample_s if before_s is None else before_s + SMOOTHING * (sample_s - before_s)


def nearest(round_trips_s: Sequence[float | None], first: int | None) -> tuple[int, ...]:
    """Return the places by round trip, those never measured last.

    ``first`` has the first place until now, if anybody: it stays there unless another is clearly
    nearer.
    """

    def rank(place: int) -> tuple[bool, float, int]:
        took_s = round_trips_s[place]
        return (took_s is None, took_s or 0.0, place)

    found = sorted(range(len(round_trips_s)), key=rank)
    if first is not None and not _clearly_nearer(round_trips_s[found[0]], round_trips_s[first]):
        found.remove(first)
        found.insert(0, first)
    return tuple(found)


def _clearly_nearer(took_s: float | None, than_s: float | None) -> bool:
    if took_s is None or than_s is None:
        return took_s is not None
    return took_s <= than_s * (1 - NEARER_SHARE) and took_s <= than_s - NEARER_S


def arrange(
    order: Order, number: int, round_trips_s: Sequence[float | None], first: int | None
) -> tuple[int, ...]:
    """Return the places of a list in the order of this policy."""
    if order is Order.SPREAD:
        return spread(len(round_trips_s), number)
    if order is Order.NEAREST:
        return nearest(round_trips_s, first)
    return tuple(range(len(round_trips_s)))
