"""Counts the use of a limited resource: in all, and by each user.

Pure bookkeeping: `take` refuses and changes nothing, or counts; `give_back` counts down.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from haproc.config.model import Config


class Denied(StrEnum):
    """The reason of a refusal: the limit that is reached."""

    ALL_TAKEN = "all together"
    SHARE_TAKEN = "one user alone"


class Shares:
    """The use of a resource with a limit for all, and a limit for each user."""

    def __init__(self, total_max: int, user_max: int | None = None) -> None:
        self.total_max = total_max
        self.user_max = total_max if user_max is None else user_max
        self.taken = 0
        self._of: dict[str, int] = {}

    @classmethod
    def of(cls, total_max: int, config: Config) -> Shares:
        """Return a new resource; a user gets at most ``limits.user_share``, if there are others."""
        return cls(total_max, user_max(total_max, config))

    def of_user(self, user: str) -> int:
        """Return the amount that the user has taken."""
        return self._of.get(user, 0)

    def denied(self, user: str, amount: int = 1) -> Denied | None:
        """Return the limit that an amount would exceed; None if the user may take it."""
        if self._of.get(user, 0) + amount > self.user_max:
            return Denied.SHARE_TAKEN if self.user_max < self.total_max else Denied.ALL_TAKEN
        return Denied.ALL_TAKEN if self.taken + amount > self.total_max else None

    def take(self, user: str, amount: int = 1) -> Denied | None:
        """Take an amount for the user; returns the exceeded limit if that is denied."""
        why = self.denied(user, amount)
        if why is None:
            self.count(user, amount)
        return why

    def count(self, user: str, amount: int) -> None:
        """Add an amount without a check; a negative one is given back."""
        self.taken += amount
        if of_user := self._of.get(user, 0) + amount:
            self._of[user] = of_user
        else:
            self._of.pop(user, None)

    def set(self, taken: Mapping[str, int]) -> None:
        """Replace all counts by these amounts of the users."""
        self._of = {user: amount for user, amount in taken.items() if amount}
        self.taken = sum(self._of.values())

    def give_back(self, user: str, amount: int = 1) -> None:
        """Return an amount that the user had taken."""
        self.count(user, -amount)


def user_max(total_max: int, config: Config) -> int:
    """Return the part of a limit that one user may take: all of it if there are no other users."""
    if len(config.users) < 2 and config.users_file is None and not config.oidc.issuer:
        return total_max
    return max(1, int(total_max * config.limits.user_share))
