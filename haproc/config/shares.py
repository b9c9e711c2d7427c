"""Counts how much of a limited resource is in use: in all, and by each user.

`take` refuses and changes nothing, or adds; `give_back` subtracts. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from haproc.config.model import Config


class Denied(StrEnum):
    """The limit that a refused amount would exceed: that for all users, or that for one."""

    ALL_TAKEN = "all together"
    SHARE_TAKEN = "one user alone"


class Shares:
    """The amounts of a resource that users have taken, with a limit for all and for each user."""

    def __init__(self, total_max: int, user_max: int | None = None) -> None:
        self.total_max = total_max
        self.user_max = total_max if user_max is None else user_max
        self.taken = 0
        self._of: dict[str, int] = {}

    @classmethod
    def of(cls, total_max: int, config: Config) -> Shares:
        """Return a resource of which nothing is taken yet.

        If the ring may have several users, each gets at most the part ``limits.user_share``.
        """
        return cls(total_max, user_max(total_max, config))

    def of_user(self, user: str) -> int:
        """Return the amount that ``user`` has taken."""
        return self._of.get(user, 0)

    def denied(self, user: str, amount: int = 1) -> Denied | None:
        """Return the limit that ``amount`` more would exceed; None if the user may take it."""
        if self._of.get(user, 0) + amount > self.user_max:
            return Denied.SHARE_TAKEN if self.user_max < self.total_max else Denied.ALL_TAKEN
        return Denied.ALL_TAKEN if self.taken + amount > self.total_max else None

    def take(self, user: str, amount: int = 1) -> Denied | None:
        """Take an amount for the user, unless that exceeds a limit; return that limit, or None."""
        why = self.denied(user, amount)
        if why is None:
            self.count(user, amount)
        return why

    def count(self, user: str, amount: int) -> None:
        """Add an amount to the user's without checking limits; a negative amount is given back."""
        self.taken += amount
        if of_user := self._of.get(user, 0) + amount:
            self._of[user] = of_user
        else:
            self._of.pop(user, None)

    def set(self, taken: Mapping[str, int]) -> None:
        """Replace all amounts by those in ``taken``, by user."""
        self._of = {user: amount for user, amount in taken.items() if amount}
        self.taken = sum(self._of.values())

    def give_back(self, user: str, amount: int = 1) -> None:
        """Give back an amount that the user had taken."""
        self.count(user, -amount)


def user_max(total_max: int, config: Config) -> int:
    """Return how much of ``total_max`` one user may take.

    That is all of it if the ring can have only one user.
    """
    if len(config.users) < 2 and config.users_file is None and not config.oidc.issuer:
        return total_max
    return max(1, int(total_max * config.limits.user_share))
