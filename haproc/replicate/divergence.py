"""Which cluster is the odd one when the outcomes of one operation differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def is_odd(me: str, outcomes: Mapping[str, str], origin: str) -> bool:
    """Whether this cluster is the one that differs.

    ``outcomes`` holds a comparable word for each cluster whose outcome is known, this one's
    included. The majority is right; between equal numbers the origin is, because its outcome is
    what the client was told.
    """
    mine = outcomes[me]
    votes = Counter(outcomes.values())
    strongest = max(count for word, count in votes.items() if word != mine) if len(votes) > 1 else 0
    if votes[mine] != strongest:
        return votes[mine] < strongest
    return origin in outcomes and outcomes[origin] != mine
