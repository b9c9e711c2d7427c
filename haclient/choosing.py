"""How a client chooses a server: order of preference, circuit breakers, and hedging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from haclient.statements import reads_only

# A circuit breaker: a server that failed is avoided, longer each time, then tried by one request.
#
# Closed: no failure is known. Open: the server failed, and until ``open_until`` others are asked
# before it. After that one request, the *trial*, may use it as if it were closed, while all others
# still avoid it. The trial closes the circuit or opens it for twice as long. An open circuit never
# forbids a server: if there is no other, it is tried (`haclient.failover`).


@dataclass(frozen=True, slots=True)
class Breaker:
    """The circuit breaker of one server, closed at first. Times are in seconds, monotonic."""

    failures: int = 0
    """The number of failures in a row; failures while it was open are not counted."""
    open_until: float | None = None
    on_trial: bool = False

    def is_open(self, now: float) -> bool:
        """True if the server has failed lately, so that other servers are tried before it."""
        return self.open_until is not None and now < self.open_until

    def tried(self, first_s: float, longest_s: float, now: float) -> Breaker:
        """Return the breaker when a request goes to the server now.

        If it was open and its time is over, it is now on trial: the request's result closes it or
        opens it again.
        """
        if self.open_until is None or now < self.open_until:
            return self
        # Other requests find it open meanwhile; a trial that never ends does not block for ever.
        return Breaker(self.failures, now + _open_s(self.failures, first_s, longest_s), True)

    def failed(self, first_s: float, longest_s: float, now: float) -> Breaker:
        """Return the breaker after a failure: open for ``first_s``, then each time twice as long.

        At most for ``longest_s``.
        """
        if self.is_open(now) and not self.on_trial:
            return self
        failures = self.failures + 1
        return Breaker(failures, now + _open_s(failures, first_s, longest_s))


CLOSED = Breaker()


def _open_s(failures: int, first_s: float, longest_s: float) -> float:
    # The exponent is bounded so that a long outage cannot overflow a float.
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30))


# The order in which a client asks its servers, computed with indexes of its list.
#
# ``ordered``: as listed. ``spread``: each client has its own permutation, so that all servers have
# as many clients, and those of a lost server are spread evenly over the others. ``nearest``: by the
# round trip of a small request, smoothed. The first server stays first until another one is clearly
# nearer, so that two similar servers do not take turns.


SMOOTHING = 0.3
"""The weight of a new response time in the average; chosen, not measured."""
NEARER_SHARE = 0.3
NEARER_S = 0.001
"""Another server becomes the first only if it is nearer by `NEARER_SHARE` and by this time.

Both are chosen, not measured.
"""


class Order(StrEnum):
    """How a client orders its servers."""

    ORDERED = "ordered"
    SPREAD = "spread"
    NEAREST = "nearest"


def spread(count: int, number: int) -> tuple[int, ...]:
    """Return the order of servers for the client with this ``number``; ``count``: the servers.

    The client's j-th server is ``(i + j + k) mod n``, with ``i = number mod n`` as its start. Each
    further digit k of the number, to the bases n-1, n-2, …, is the number of remaining servers that
    it skips, counted from the one before. The first n! numbers give each permutation once, and so
    do the next. So the clients of any lost servers are spread equally over the others; for one lost
    server n * (n - 1) clients with numbers in a row are enough.
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
    """Return the average response time after one more sample; ``before_s``: the average so far."""
    return sample_s if before_s is None else before_s + SMOOTHING * (sample_s - before_s)


def nearest(round_trips_s: Sequence[float | None], first: int | None) -> tuple[int, ...]:
    """Return the servers' indexes by response time; servers that were never measured come last.

    ``first``: the server that is first now, or None: it stays first unless another one is clearly
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
    """Return the servers' indexes in this order; ``number``: the client's number for ``spread``."""
    if order is Order.SPREAD:
        return spread(len(round_trips_s), number)
    if order is Order.NEAREST:
        return nearest(round_trips_s, first)
    return tuple(range(len(round_trips_s)))


# Hedging: asking a second server for the same query if the first one is slow; never for writes.
#
# A hedged query goes to the next server, too, if there is no answer after a fixed time, or after
# the 95th percentile of the recent queries' times (then at most one query in twenty is sent twice).
# The first answer counts, the other attempt is cancelled.


RECENT = 100
"""The number of recent queries whose times are remembered; chosen, not measured."""
RECENT_MIN = 20
"""While fewer times are known, no query counts as slow."""
P95 = "p95"


@dataclass(frozen=True, slots=True)
class Hedging:
    """When to send a query to a second server, and the times of recent queries for that."""

    after: float | str | None = None
    """Seconds, or `P95` (the 95th percentile of recent queries); None: never."""
    recent_s: tuple[float, ...] = ()

    def took(self, seconds: float) -> Hedging:
        """Return the state after one more query, which took ``seconds``."""
        if self.after != P95:
            return self
        return Hedging(self.after, (*self.recent_s, seconds)[-RECENT:])

    def after_s(self) -> float | None:
        """Return how long to wait before the second server is asked; None: never ask it."""
        if not isinstance(self.after, str):
            return self.after
        if len(self.recent_s) < RECENT_MIN:
            return None
        return sorted(self.recent_s)[len(self.recent_s) * 95 // 100]


def is_hedgeable(statement: str, options: Mapping[str, str]) -> bool:
    """True if the statement only reads, so that it may be sent to two servers.

    A statement that the caller declares as a query counts as one (servers refuse others); a
    statement of another declared class does not. Otherwise the text decides.
    """
    named = options.get("operation_class")
    return reads_only(statement) if named is None else named == "query"
