"""Which clusters are wrong when some of them differ: only a majority proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def right_of(votes: Iterable[str], absent: int) -> str | None:
    """Return what is right; None where nothing proves it.

    ``votes``: what each cluster that may vote has. ``absent``: how many may vote later. What all
    have is right; where they differ, what more than half have, counting those that are absent: so
    no later vote can turn it.
    """
    counts = Counter(votes)
    if not counts:
        return None
    word, most = counts.most_common(1)[0]
    alike = len(counts) == 1
    return word if alike or 2 * most > counts.total() + absent else None


def is_odd(me: str, outcomes: Mapping[str, str], absent: int) -> bool:
    """Whether this cluster is one that is proven to differ; in a tie nobody is.

    ``outcomes`` holds a comparable word for each cluster whose outcome is known.
    """
    right = right_of(outcomes.values(), absent)
    return right is not None and outcomes[me] != right


def tied(outcomes: Mapping[str, str], absent: int) -> bool:
    """Whether outcomes differ and nothing proves which of them is right."""
    return right_of(outcomes.values(), absent) is None
