"""Which cluster is the odd one when the outcomes of one operation differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def right_words(outcomes: Mapping[str, str], origin: str) -> set[str]:
    """Return the outcome that is right; more than one where nothing says which of them is.

    ``outcomes`` holds a comparable word for each cluster whose outcome is known. The majority is
    right; between equal numbers the origin is, because its outcome is what the client was told.
    """
    votes = Counter(outcomes.values())
    most = max(votes.values())
    right = {word for word, count in votes.items() if count == most}
    return {outcomes[origin]} if outcomes.get(origin) in right else right


def is_odd(me: str, outcomes: Mapping[str, str], origin: str) -> bool:
    """Whether this cluster is the one that differs. In a tie none of the tied is: never are all."""
    return outcomes[me] not in right_words(outcomes, origin)
