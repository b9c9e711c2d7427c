"""What can go wrong with a log; every error says whether trying again can help."""

from __future__ import annotations

from typing import ClassVar


class LogError(Exception):
    """Base of all errors of this package."""

    retriable: ClassVar[bool] = False


class LogUnavailableError(LogError):
    """The log cannot be reached, or did not answer in time; an append's outcome is unknown."""

    retriable = True


class TrimmedError(LogError):
    """The records asked for were trimmed away: reading on would skip some silently."""


class LogRegressedError(LogError):
    """The log ends before an offset that it once gave out: it lost its newest records."""


class FencedError(LogError):
    """A cursor of a newer epoch is stored: another process has taken over this reader."""


class LogCorruptError(LogError):
    """A stored record's bytes cannot be read."""


class UnknownVersionError(LogCorruptError):
    """A record was written by a newer version than this one."""


class RecordTooLargeError(LogError):
    """The record is over the log's limit; nothing was appended."""


class ValueTooLargeError(LogError):
    """The value is over the key-value store's limit; nothing was changed."""
