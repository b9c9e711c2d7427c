"""A circuit breaker: who failed lately is left alone, longer each time, then tried by one request.

Closed: nothing is known against the server. Open: it failed, and until ``open_until`` others are
asked before it. After that one request, the *trial*, may go to it as if it were closed, while the
rest still stay away; its end closes the circuit or opens it for twice as long. An open circuit
never forbids a server: who has no other is asked all the same (`haclient.failover`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Breaker:
    """One server's circuit; closed as made. Times are seconds on a monotonic clock."""

    failures: int = 0
    """In a row, those while it was open anyway not counted."""
    open_until: float | None = None
    on_trial: bool = False

    def is_open(self, now: float) -> bool:
        """Whether to ask others first."""
        return self.open_until is not None and now < self.open_until

    def asked(self, first_s: float, longest_s: float, now: float) -> Breaker:
        """Return the circuit when a request goes to the server now, on trial if it was open."""
        if self.open_until is None or now < self.open_until:
            return self
        # Whoever comes meanwhile finds it open; a trial that never ends blocks nobody for ever.
        return Breaker(self.failures, now + _open_s(self.failures, first_s, longest_s), True)

    def failed(self, first_s: float, longest_s: float, now: float) -> Breaker:
        """Return the circuit after a failure: open for ``first_s``, doubled with each further."""
        if self.is_open(now) and not self.on_trial:
            return self
        failures = self.failures + 1
        return Breaker(failures, now + _open_s(failures, first_s, longest_s))


CLOSED = Breaker()


def _open_s(failures: int, first_s: float, longest_s: float) -> float:
    # The exponent is bounded so that a long outage cannot overflow a float.
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30))
