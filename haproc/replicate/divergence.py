"""Which cluster is the odd one when the outcomes of one operation differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def is_odd(me: str, outcomes: Mapping[str, str], origin: str) -> bool:
    """Whether this cluster is the one that differs.

    ``outcomes`` holds a comparable word for each cluster whose outcome is known, this one's
    included. The majority is right; between equal numbers the origin is, because its outcome is
    what the client was told. Where that leaves a tie, none of the tied is odd: never are all.
    """
    votes = Counter(outcomes.values())
    most = max(votes.values())
    right = {word for word, count in votes.items() if count == most}
    if outcomes.get(origin) in right:
        right = {outcomes[origin]}
    return outcomes[me] not in right
