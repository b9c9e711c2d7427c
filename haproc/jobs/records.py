"""The form of jobs in the key-value store: keys, bytes, the kept end of their output; no I/O."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from dmq.log import Kinds
from haproc.jobs.model import (
    Ending,
    Event,
    Fenced,
    GrantedSubmission,
    JobAttempt,
    Kill,
    Submission,
)

# Jobs' keys and bytes in the ring's key-value store. No I/O.
#
# Each key is written once, so no late write undoes a newer one:
#
# - ``job/asked/USER/REQUEST/NAME`` a submission. The revision of the first one under a request id
#   **is the job's id**: a number that no other job of the ring has or will have, made without
#   asking another HAProc;
# - ``job/at/ID/…`` its events: ``a/NUMBER.NAME`` an attempt, ``e/NAME`` an ending,
#   ``k/NAME`` a kill, ``f/NAME`` a fence after its end, ``s/ATTEMPT/SESSION`` a Spark session;
# - ``jobfile/STORED/INDEX`` the bytes of its files;
# - ``joblog/ID/ATTEMPT/FROM-TO`` lines of its log, see `LogPiece`.


JOBS: Final = "job/"
REQUESTED: Final = "job/asked/"
EVENTS: Final = "job/at/"
FILES: Final = "jobfile/"
LOGS: Final = "joblog/"
GRACE_MS: Final = 3_600_000
"""The time after which stored files without a job are deleted. Chosen: far above the differences of
clocks."""


def request_prefix(user: str, request_id: str) -> str:
    """Return the prefix of the keys of all submissions under one request id."""
    return f"{REQUESTED}{quote(user, safe='')}/{quote(request_id, safe='')}/"


def events_prefix(job_id: int) -> str:
    """Return the prefix of the keys of a job's events."""
    return f"{EVENTS}{job_id:016}/"


def left_over(keys: Iterable[str], jobs: Mapping[int, Submission], now_ms: int) -> list[str]:
    """Return the keys of files and logs that belong to no job, and never will.

    Such keys remain when a submission is interrupted, or when a HAProc dies while it deletes a job.
    Files are stored before their job, so young ones are left out; their keys contain the time.
    """
    stored = {job.stored for job in jobs.values()}
    found = []
    for key in keys:
        head, of, *_ = key.split("/")
        if f"{head}/" == LOGS:
            alive = int(of) in jobs
        else:
            alive = of in stored or now_ms - int(of.partition("-")[0]) < GRACE_MS
        if not alive:
            found.append(key)
    return found


def session_key(job_id: int, attempt: str, session_id: str) -> str:
    """Return the key that records the use of a Spark session by an attempt."""
    return f"{events_prefix(job_id)}s/{attempt}/{quote(session_id, safe='')}"


def file_key(stored: str, index: int) -> str:
    """Return the key of a file's bytes; ``stored``: the submission's name for its files."""
    return f"{FILES}{stored}/{index:03}"


def event_key(job_id: int, event: Event, name: str) -> str:
    """Return the key of an event; ``name``: a unique text, which ends the key."""
    match event:
        case JobAttempt(number):
            return f"{events_prefix(job_id)}a/{number:03}.{name}"
        case Ending():
            return f"{events_prefix(job_id)}e/{name}"
        case Kill():
            return f"{events_prefix(job_id)}k/{name}"
        case Fenced():
            return f"{events_prefix(job_id)}f/{name}"


@dataclass(frozen=True, slots=True)
class KeyParts:
    """A key that begins with ``job/at/``, divided into its parts.

    ``sort``: ``a`` attempt, ``e`` ending, ``k`` kill, ``f`` fence, ``s`` Spark session. ``rest``:
    the text after it.
    """

    job_id: int
    sort: str
    rest: str


def place_of(key: str) -> KeyParts | None:
    """Return the parts of a key that begins with ``job/at/``; None for any other key."""
    number, _, rest = key.removeprefix(EVENTS).partition("/")
    sort, _, rest = rest.partition("/")
    return KeyParts(int(number), sort, unquote(rest)) if number.isdigit() and rest else None


# -- bytes -----------------------------------------------------------------------------------


RECORDS: Final[Kinds[Submission | Event]] = Kinds(
    {
        "job.asked": Submission,
        "job.granted": GrantedSubmission,
        "job.attempt": JobAttempt,
        "job.ending": Ending,
        "job.kill": Kill,
        "job.fenced": Fenced,
    }
)


# The tail of a job's output in the key-value store: whole lines, the oldest ones dropped.
#
# A piece is stored under the numbers of its lines, and is never changed. A small last piece is
# replaced by a longer one with the same start, and then deleted. A reader in between sees both, and
# takes the longer one. Lines are numbered from the job's first attempt on. Lines that an attempt
# adds after the next attempt has begun are not shown.


LINE_BYTES_MAX: Final = 8 << 10
"""The most bytes of a line of output: a longer one is cut into parts, between two characters."""
CHARACTER_BYTES_MAX: Final = 4
PIECE_BYTES_MAX: Final = 64 << 10
LINE_COST: Final = 4
"""The bytes that a stored line costs in addition to its text; so the number of empty lines is
bounded, too."""
GROWING_BYTES_MAX: Final = 8 << 10
"""The size below which a log's last piece is written again with the next lines. Chosen: so a
program that writes a line a second has few pieces, and repeated writes are cheap."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some lines of a job's output, stored as one value; ``first``: the first line's number."""

    first: int
    lines: tuple[str, ...]

    @property
    def end(self) -> int:
        """The number of the line after the piece's last one."""
        return self.first + len(self.lines)

    @property
    def size(self) -> int:
        """The approximate size of the piece in bytes."""
        return sum(map(_cost, self.lines))


def log_prefix(job_id: int) -> str:
    """Return the prefix of the keys of a job's output."""
    return f"{LOGS}{job_id:016}/"


def piece_key(job_id: int, attempt: str, first: int, end: int) -> str:
    """Return the key of a piece of output; ``first``, ``end``: its lines' numbers."""
    return f"{log_prefix(job_id)}{attempt}/{first:012}-{end:012}"


def piece_bytes(piece: LogPiece) -> bytes:
    """Return the stored form of a piece: its lines as a JSON list."""
    return json.dumps(list(piece.lines), ensure_ascii=False).encode("utf-8", "replace")


def lines_of(data: bytes) -> list[str]:
    """Return the lines of a piece of output from its stored form."""
    return [str(line) for line in json.loads(data)]


class Tail:
    """The end of one attempt's output: the part that the ring keeps."""

    def __init__(self, first: int, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._open = b""
        self._fresh: deque[str] = deque()
        self._fresh_bytes = 0
        self._first_fresh = first
        self._stored: deque[tuple[int, int, int]] = deque()
        self._growing: LogPiece | None = None

    @property
    def end(self) -> int:
        """The number that the next line of output gets."""
        return self._first_fresh + len(self._fresh)

    def add_output(self, data: bytes) -> None:
        """Add bytes of the program's output, and divide them into lines."""
        lines = (self._open + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._open = lines.pop()
        for line in lines:
            self._line(line)
        while len(self._open) > LINE_BYTES_MAX:
            at = _cut_at(self._open)
            self._line(self._open[:at])
            self._open = self._open[at:]

    def _line(self, line: bytes) -> None:
        while True:
            at = _cut_at(line)
            text = line[:at].decode("utf-8", "replace")
            self._fresh.append(text)
            self._fresh_bytes += _cost(text)
            line = line[at:]
            if not line:
                break
        while self._fresh_bytes > self._bytes_max:  # they would be dropped at once
            self._fresh_bytes -= _cost(self._fresh.popleft())
            self._first_fresh += 1
            self._growing = None

    def close(self) -> None:
        """Add the unfinished last line, because the output has ended."""
        if self._open:
            self._line(self._open)
            self._open = b""

    def flush(self) -> tuple[list[LogPiece], list[tuple[int, int]]]:
        """Return the pieces to store now, and (first line, end) of the pieces to delete then."""
        if not self._fresh:
            return [], []
        gone: list[tuple[int, int]] = []
        lines, first = list(self._fresh), self._first_fresh
        if self._growing is not None and self._growing.size < GROWING_BYTES_MAX:
            lines, first = [*self._growing.lines, *lines], self._growing.first
            gone.append((self._growing.first, self._growing.end))
            self._stored.pop()
        self._first_fresh += len(self._fresh)
        self._fresh.clear()
        self._fresh_bytes = 0
        pieces = list(_cut(first, lines))
        self._stored.extend((piece.first, piece.end, piece.size) for piece in pieces)
        self._growing = pieces[-1]
        total = sum(size for _, _, size in self._stored)
        while total > self._bytes_max and len(self._stored) > 1:
            oldest, end, size = self._stored.popleft()
            total -= size
            gone.append((oldest, end))
        return pieces, gone


def _cut_at(line: bytes) -> int:
    """Return how many bytes of ``line`` one part takes, so that no character is cut in two."""
    if len(line) <= LINE_BYTES_MAX:
        return len(line)
    for at in range(LINE_BYTES_MAX, LINE_BYTES_MAX - CHARACTER_BYTES_MAX, -1):
        if line[at] & 0b1100_0000 != 0b1000_0000:  # a character begins here
            return at
    return LINE_BYTES_MAX  # it is no UTF-8


def _cut(first: int, lines: Sequence[str]) -> Iterable[LogPiece]:
    taken: list[str] = []
    size = 0
    for line in lines:
        if taken and size + _cost(line) > PIECE_BYTES_MAX:
            yield LogPiece(first, tuple(taken))
            first, taken, size = first + len(taken), [], 0
        taken.append(line)
        size += _cost(line)
    yield LogPiece(first, tuple(taken))


def _cost(line: str) -> int:
    return len(line) + LINE_COST


@dataclass(frozen=True, slots=True)
class Span:
    """A stored piece of a job's output, and the lines of it that are shown.

    ``first``: the number of the piece's first line; ``start``, ``end``: those of the shown lines.
    """

    key: str
    first: int
    start: int
    end: int


def spans(keys: Iterable[str], job_id: int, attempts: Sequence[JobAttempt]) -> list[Span]:
    """Return the stored pieces that together are a job's output, in order, without overlap.

    ``keys``: the keys of all its pieces.
    """
    prefix = log_prefix(job_id)
    of: dict[str, list[tuple[int, int, str]]] = {}
    for key in keys:
        attempt, _, numbers = key.removeprefix(prefix).partition("/")
        first, _, end = numbers.partition("-")
        of.setdefault(attempt, []).append((int(first), int(end), key))
    found: list[Span] = []
    ends = [*(each.log_from for each in attempts[1:]), None]
    for attempt_of, until in zip(attempts, ends, strict=False):
        at = attempt_of.log_from
        pieces = sorted((first, -end, key) for first, end, key in of.get(attempt_of.name, ()))
        for begin, longest, key in pieces:
            stop = -longest if until is None else min(-longest, until)
            start = max(begin, at)
            if start < stop:
                found.append(Span(key, begin, start, stop))
                at = stop
    return found


def total(found: Sequence[Span], attempts: Sequence[JobAttempt]) -> int:
    """Return the number of lines of a job's output so far, deleted ones included."""
    begun = attempts[-1].log_from if attempts else 0
    return max(begun, found[-1].end if found else 0)


def page(start: int | None, size: int, found: Sequence[Span], end: int) -> tuple[int, int]:
    """Return the number of the first line of a page, and of the line after it.

    ``start``: the wanted first line; None: the last page. ``end``: the number after the output's
    last line.
    """
    oldest = found[0].start if found else end
    begin = max(end - size, oldest) if start is None else min(max(start, oldest), end)
    return begin, min(begin + size, end)
