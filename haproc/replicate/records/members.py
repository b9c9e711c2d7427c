"""Records that say which clusters the ring has.

- ``join``, ``leave``: an operator has added a cluster, or removed one for good.
- ``members``: nothing changed; said anew before the record that said it is trimmed away.

Each of them holds all members there are after it, so the newest is enough. And each names the
record that it *replaces*: it counts only if that is the one that counted before it. So of two
changes made at the same time the first in the log counts, and the other is void, on every HAProc
alike; who appended that one sees it and makes the change anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dmq import Json, Record
from haproc.config.model import Address
from haproc.membership.peers import Member
from haproc.replicate.records.fields import number, text


class Change(StrEnum):
    """What a record says; also its kind."""

    JOIN = "join"
    LEAVE = "leave"
    MEMBERS = "members"


KINDS: Final = frozenset(change.value for change in Change)


@dataclass(frozen=True, slots=True)
class Roster:
    """``members``: all there are from here on. ``replaces``: offset of the record before, or -1.

    ``cluster``: who joins or leaves, else empty. ``by``: the HAProc that was asked.
    """

    change: Change
    cluster: str
    members: tuple[Member, ...]
    replaces: int
    by: str


def roster_record(roster: Roster) -> Record:
    """Return the log record of a message."""
    members: list[Json] = [
        [each.name, each.peer.host, each.peer.port, each.client_url] for each in roster.members
    ]
    headers: dict[str, Json] = {
        "cluster": roster.cluster,
        "members": members,
        "replaces": roster.replaces,
        "by": roster.by,
    }
    return Record(roster.change.value, "", headers)


def roster_message(record: Record) -> Roster:
    """Return the message of a record of these kinds; KeyError, TypeError or ValueError."""
    h: Mapping[str, Any] = record.headers
    replaces = number(h["replaces"])
    members = tuple(_member(*each) for each in h["members"])
    if len({each.name for each in members}) != len(members):
        raise ValueError("a cluster is named twice")
    return Roster(Change(record.kind), text(h["cluster"]), members, replaces, text(h["by"]))


def _member(name: object, host: object, port: object, client_url: object) -> Member:
    return Member(text(name), Address(text(host), number(port, "port")), text(client_url))
