"""PEP 249's type objects and constructors.

A column's ``type_code`` is the name of its Spark type without parameters (``"DECIMAL"``); only
inner types have them (``"ARRAY<INT>"``). A type object is equal to each name of its group.
"""

from __future__ import annotations

import datetime
import time


class TypeObject:
    """PEP 249's type object: a group of Spark types, equal to each of their names."""

    def __init__(self, name: str, *members: str) -> None:
        self.name = name
        self.members = frozenset(members)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self.members == other.members
        return other in self.members

    def __hash__(self) -> int:
        return hash(self.members)

    def __repr__(self) -> str:
        return f"haclient.{self.name}"


STRING = TypeObject("STRING", "STRING", "VARIANT")
BINARY = TypeObject("BINARY", "BINARY")
NUMBER = TypeObject("NUMBER", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
DATETIME = TypeObject("DATETIME", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL")
ROWID = TypeObject("ROWID")
"""Spark has no row ids: no column is of this type."""

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """Return the local date of a unix time."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    """Return the local time of day of a unix time."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """Return the local date and time of a unix time."""
    return Timestamp(*time.localtime(ticks)[:6])
