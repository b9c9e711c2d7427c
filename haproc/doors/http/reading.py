"""Reads parts of a request: its head, a compressed body, the fields of a JSON body."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from multidict import CIMultiDictProxy

from haproc.failure import ErrorClass, RequestError, refused

# Undoes a body's Content-Encoding, piece by piece, and detects a body that is cut off.
#
# aiohttp would accept the beginning of a gzip stream as the whole.


PIECE_BYTES: Final = 64 << 10
PLAIN: Final = frozenset({"", "identity"})
ENCODINGS: Final = PLAIN | {"gzip", "x-gzip", "deflate"}
_DEFLATED: Final = 8
"""The low half of the first byte of deflate's standard header, which many clients leave out."""


class Unpacking:
    """Decompresses one body, in an encoding of `ENCODINGS`. Methods raise RequestError."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream: zlib._Decompress | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the next compressed bytes of the body, decompressed, in pieces."""
        while data:
            if self._stream is None or self._stream.eof:
                data = data if self._stream is None else data.lstrip(b"\0")
                if not data:
                    return
                self._stream = self._begun(data[0])
            yield from self._of_stream(data)
            data = self._stream.unused_data

    def check_whole(self) -> None:
        """Raise RequestError if the compressed body is cut off."""
        if self._stream is not None and not self._stream.eof:
            raise self._wrong("is cut off")

    def _of_stream(self, data: bytes) -> Iterator[bytes]:
        stream, piece = self._stream, b""
        assert stream is not None
        while not stream.eof and (data or len(piece) == PIECE_BYTES):
            try:
                piece = stream.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise self._wrong("cannot be read") from error
            data = stream.unconsumed_tail
            if piece:
                yield piece

    def _begun(self, first: int) -> zlib._Decompress:
        if self._encoding != "deflate":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        return zlib.decompressobj(zlib.MAX_WBITS if first & 0xF == _DEFLATED else -zlib.MAX_WBITS)

    def _wrong(self, what: str) -> RequestError:
        return refused(
            ErrorClass.BAD_REQUEST,
            f"the body {what}: it is no whole {self._encoding} stream",
            "look whether the file is whole, and send it again",
        )


# The check of every request's head.


def check_head(headers: CIMultiDictProxy[str], read: Collection[str]) -> None:
    """Raise RequestError for a repeated header or an unknown encoding.

    ``read``: the headers that HAProc reads.
    """
    for name in ("Content-Encoding", *read):
        if len(headers.getall(name, ())) > 1:
            raise refused(ErrorClass.BAD_REQUEST, f"there are several headers {name}", "send one")
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise refused(
            ErrorClass.CONTENT_TYPE,
            f"Content-Encoding {encoding[:80]!r} is not known here",
            "send the body raw, or with gzip or deflate",
        )


# Reading a JSON body field by field: wrong types, unknown names and bad values are refused.
#
# Values in, values or RequestError out; every message names the field.


ID_PATTERN: Final = "[A-Za-z0-9._:-]{1,128}"
_ID: Final = re.compile(ID_PATTERN)
AGE_MAX_S: Final = 1e9
_INTEGER_MAX: Final = (1 << 63) - 1

E = TypeVar("E", bound=StrEnum)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; RequestError if it is none, or an object repeats a name."""
    try:
        value = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _not_json(str(error)[:200]) from None
    except RecursionError:
        raise _not_json("nested too deeply") from None
    except ValueError:  # the only one left: a number that Python does not read
        digits_max = sys.get_int_max_str_digits()
        message = f"a number in the body has more than {digits_max} digits"
        raise refused(ErrorClass.BAD_REQUEST, message) from None
    if not isinstance(value, dict):
        raise refused(ErrorClass.BAD_REQUEST, "the body must be a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not JSON")


def _not_json(why: str) -> Exception:
    return refused(ErrorClass.BAD_REQUEST, f"the body is not JSON: {why}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise refused(ErrorClass.BAD_REQUEST, f"{name[:80]!r} comes twice in one object")
    return found


def no_unknown(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise RequestError if a body has fields other than ``known``."""
    for name in body:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known)}"
            raise refused(ErrorClass.BAD_REQUEST, f"unknown field {name[:80]!r}", hint)


def text(body: Mapping[str, Any], name: str) -> str | None:
    """Return a field's text; None if it is null or absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(name, "a string", value)
    return value


def needed_text(body: Mapping[str, Any], name: str) -> str:
    """Return a field's text; RequestError if it is missing or empty."""
    value = text(body, name)
    if value is None or not value.strip():
        raise refused(ErrorClass.BAD_REQUEST, f"{name} is missing or empty")
    return value


def needed_texts(body: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the texts of several fields; RequestError if one is missing or empty."""
    found = [value for name in names if (value := text(body, name)) is not None]
    if len(found) < len(names):
        raise refused(ErrorClass.BAD_REQUEST, f"needed: {', '.join(names)}")
    return found


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field's boolean; False if it is absent."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be true or false")
    return value


def identifier(body: Mapping[str, Any], name: str) -> str | None:
    """Return a field's id; None if absent. An id has at most 128 letters, digits and ``._:-``."""
    value = text(body, name)
    if value is not None:
        check_identifier(value, name)
    return value


def check_identifier(value: str, name: str) -> str:
    """Return the id ``value``; RequestError if it is not valid. ``name``: the field's name."""
    if not _ID.fullmatch(value):
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    return value


def choice(body: Mapping[str, Any], name: str, kind: type[E], known: Sequence[E] = ()) -> E | None:
    """Return a field's value as a member of the enum ``kind``; None if it is absent.

    ``known``: the members that are allowed; empty: all of them.
    """
    value = text(body, name)
    if value is None:
        return None
    members = known or tuple(kind)
    for member in members:
        if member.value == value:
            return member
    names = ", ".join(member.value for member in members)
    raise refused(ErrorClass.BAD_REQUEST, f"{name} is {value[:40]!r}", f"known values: {names}")


def count(body: Mapping[str, Any], name: str) -> int | None:
    """Return a field's whole number of at least 1; None if it is absent."""
    return _whole(body, name, 1)


def offset(body: Mapping[str, Any], name: str) -> int | None:
    """Return a field's whole number of at least 0, such as an offset; None if it is absent."""
    return _whole(body, name, 0)


def _whole(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "a whole number", value)
    if not least <= value <= _INTEGER_MAX:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be at least {least} and at most 2^63-1")
    return value


def number_in(written: str, digits_max: int = 18) -> int | None:
    """Return the whole number of at least 0 that is ``written``; None if it is no such number."""
    number = written.isascii() and written.isdigit() and len(written) <= digits_max
    return int(written) if number else None


def whole_number(written: str, name: str, digits_max: int = 18) -> int:
    """Return the whole number of at least 0 that is ``written``; RequestError if it is none.

    ``name``: what the error calls it.
    """
    number = number_in(written, digits_max)
    if number is None:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be a whole number of at least 0")
    return number


def page(query: Mapping[str, str], default: int, most: int) -> tuple[int, int]:
    """Return where a page of a list begins, and how many entries it may have (``most`` at most)."""
    no_unknown(query, ("start", "limit"))
    start = whole_number(query.get("start", "0"), "start")
    limit = whole_number(query.get("limit", str(default)), "limit")
    if not 1 <= limit <= most:
        raise refused(ErrorClass.BAD_REQUEST, f"limit must be 1 to {most}")
    return start, limit


def seconds_in(written: str | None, name: str) -> float | None:
    """Return a number of seconds written in a query; None if absent. Its range is not checked."""
    try:
        return None if written is None else float(written)
    except ValueError:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be a number of seconds") from None


def seconds(value: object, name: str, maximum_s: float) -> float | None:
    """Return a duration in seconds, above 0, at most ``maximum_s``; None if ``value`` is None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "a number of seconds", value)
    if not 0 < value <= maximum_s or math.isnan(value):
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be above 0 and at most {maximum_s:g}")
    return float(value)


def age(value: object) -> float:
    """Return how many seconds ago a request was first sent, at least 0; 0 if ``value`` is None."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong("age_s", "a number of seconds", value)
    if not 0 <= value <= AGE_MAX_S:
        raise refused(ErrorClass.BAD_REQUEST, f"age_s must be at least 0 and at most {AGE_MAX_S:g}")
    return float(value)


def wrong(name: str, expected: str, value: object) -> Exception:
    """Return the error for the field ``name``, whose value has the wrong type."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    kinds |= {list: "a list", dict: "an object", type(None): "null"}
    return refused(ErrorClass.BAD_REQUEST, f"{name} must be {expected}, not {kinds[type(value)]}")
