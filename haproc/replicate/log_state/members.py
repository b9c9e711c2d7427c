"""What the log says about the ring's members: names, claims, and which stored cursors are valid."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from dmq import Cursor, LogCorruptError
from haproc.membership.peers import Enrolled
from haproc.replicate.records.control import Roster
from haproc.replicate.records.progress import Progress, from_cursor

# The ring's members according to the log. Values in, values out.


def enrolled_after(enrolled: Enrolled, offset: int, roster: Roster) -> Enrolled:
    """Return the members after a ``members`` record at ``offset``; a void one changes nothing."""
    if offset <= enrolled.offset or roster.replaces != enrolled.offset:
        return enrolled
    return Enrolled(offset, roster.members)


class RingMembers:
    """The ring's members: by the log as far as it was read, or, if it names none, as configured."""

    def __init__(self, me: str, configured: tuple[str, ...]) -> None:
        self._me = me
        self._order = configured
        self._enrolled = Enrolled()

    @property
    def enrolled(self) -> Enrolled:
        """The members by the newest ``members`` record that was read."""
        return self._enrolled

    @property
    def order(self) -> tuple[str, ...]:
        """The names of all members in ring order; this cluster is in it even if it was removed."""
        return self._order

    @property
    def peers(self) -> Sequence[str]:
        """The names of the other clusters, beginning with the next one in ring order."""
        at = self._order.index(self._me)
        return self._order[at + 1 :] + self._order[:at]

    def enrol(self, enrolled: Enrolled) -> None:
        """Set the members that the log names."""
        self._enrolled = enrolled
        if enrolled.members is not None:
            names = tuple(member.name for member in enrolled.members)
            self._order = names if self._me in names else (self._me, *names)


def names_needed(
    enrolled: Collection[str] | None,
    configured: Collection[str],
    with_cursor: Collection[str],
    with_claim: Collection[str],
) -> frozenset[str]:
    """Return the clusters that hold up trimming, and whose votes an ``abandon`` needs.

    They are the log's members. While the log names none, a configuration may lack one: so every
    cluster is needed that is configured, or has stored a cursor or a claim.
    """
    if enrolled is not None:
        return frozenset(enrolled)
    return frozenset(configured) | frozenset(with_cursor) | frozenset(with_claim)


# Claims: the incarnation of each cluster's HAProc whose records are valid at an offset of the log.
#
# A process that was frozen and replaced may wake up and append its pending record. Its decisions
# and reports contain its *epoch*, the offset of its own claim. Such a record is void if it comes
# after a newer claim of the same cluster. All clusters agree, because only offsets are compared.


class Claims:
    """All claims that were read from the log so far.

    ``newest``: by cluster, the claim in the stored progress.
    """

    def __init__(self, newest: Iterable[tuple[str, int]] = ()) -> None:
        self._offsets: dict[str, list[int]] = {}
        self.restore(newest)

    def restore(self, newest: Iterable[tuple[str, int]]) -> None:
        """Begin anew with the claims of the stored progress."""
        self._offsets = {cluster: [offset] for cluster, offset in newest}

    @property
    def clusters(self) -> frozenset[str]:
        """The names of the clusters of which a claim is known."""
        return frozenset(self._offsets)

    def see(self, offset: int, cluster: str) -> None:
        """Note the claim of ``cluster`` at ``offset``; a repetition changes nothing."""
        offsets = self._offsets.setdefault(cluster, [])
        if offset not in offsets[-64:]:
            insort(offsets, offset)

    def void(self, offset: int, cluster: str, epoch: int) -> bool:
        """True if a record at ``offset``, by the process of ``epoch``, is void.

        It is if the cluster had a later claim before the record.
        """
        offsets = self._offsets.get(cluster, [])
        newest = bisect_left(offsets, offset) - 1
        return newest >= 0 and offsets[newest] > epoch

    def before(self, offset: int) -> tuple[tuple[str, int], ...]:
        """Return each cluster's newest claim below the offset."""
        found = []
        for cluster, offsets in sorted(self._offsets.items()):
            newest = bisect_left(offsets, offset) - 1
            if newest >= 0:
                found.append((cluster, offsets[newest]))
        return tuple(found)


class StoredCursors:
    """Finds the stored cursors that are valid. Values in, values out.

    A cursor is valid only for the log that its cluster read. A log that lost its newest records (by
    a disk that confirmed writes too early, or an old copy) ends before the cursors of its readers,
    and later grows beyond them with other records. So a cursor is valid only if

    - it is not beyond the log's end, which is read after the cursor. A cursor that was beyond the
      end once stays invalid, however far the log grows, until its cluster stores a lower one or
      another process stores one;
    - the newest claims below the cursor that are stored with it are in this log: a process that
      began after the loss has claimed at an offset that held another record before;
    - its cluster is not known to differ from the others, and no copy replaces its tables.

    These rules do not find a log that was shortened and grew again while no process read it or
    began.

    ``claims``: the log's claims, up to the ends that callers give.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._beyond: dict[str, Cursor] = {}

    def counting(self, cursors: Mapping[str, Cursor], end: int) -> dict[str, Progress]:
        """Return, by cluster, the progress of each stored cursor that is valid.

        ``end``: the log's end, read after the cursors. All claims below it must be noted.
        """
        found: dict[str, Progress] = {}
        for name, cursor in cursors.items():
            if cursor.offset > end:
                self._beyond[name] = cursor
            if self._was_beyond(name, cursor):
                continue
            with suppress(LogCorruptError):
                progress = from_cursor(cursor)
                whole = progress.diverged is None and progress.copying is None
                if whole and self._of_this_log(progress):
                    found[name] = progress
        return found

    def _was_beyond(self, name: str, cursor: Cursor) -> bool:
        known = self._beyond.get(name)
        if known is None:
            return False
        return cursor.epoch == known.epoch and cursor.offset >= known.offset

    def _of_this_log(self, progress: Progress) -> bool:
        here = dict(self._claims.before(progress.low))
        return all(here.get(name, claim) == claim for name, claim in progress.claims)
