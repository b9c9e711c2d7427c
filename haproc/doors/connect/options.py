"""What a session asks of HAProc, not of Spark: settings below ``haproc.``, parameters of its URL.

A parameter of an ``sc://`` URL that PySpark does not know (``haproc-consistency=…``) comes with
every call as metadata; what the session set by name counts more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from haproc.classify.model import BUDGET_MAX_S, WriteConcern
from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.config.model import Consistency, Reads
from haproc.doors.http import fields
from haproc.failure import ErrorClass, refused
from haproc.route.model import Fanout, Freshness
from haproc.statements.request import TIMEOUT_MAX_S

PREFIX: Final = "haproc."
_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "haproc.consistency": lambda value, name: fields.choice({name: value}, name, Consistency),
    "haproc.acceptable_offset_lag": lambda value, name: fields.whole_number(value, name, 19),
    "haproc.after_offset": lambda value, name: fields.whole_number(value, name, 19),
    "haproc.write_concern": lambda value, name: fields.choice({name: value}, name, WriteConcern),
    "haproc.apply_budget_s": lambda value, name: fields.seconds(
        fields.seconds_in(value, name), name, BUDGET_MAX_S
    ),
    "haproc.fanout": lambda value, name: fields.choice({name: value}, name, Fanout),
    "haproc.timeout_s": lambda value, name: fields.seconds(
        fields.seconds_in(value, name), name, TIMEOUT_MAX_S
    ),
}


_AGE: Final = "haproc-age-s"
"""Beside a request that haclient sends again: the seconds since it did so first."""


def age_s(metadata: Mapping[str, str]) -> float:
    """Return how long ago a request was first sent, as far as it says; raises RequestError."""
    return fields.age(fields.seconds_in(metadata[_AGE], _AGE)) if _AGE in metadata else 0.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a SET or RESET says of options: of all if ``key`` is empty."""

    key: str
    value: str | None = None
    resets: bool = False


def said_in(text: str) -> Said | None:
    """Return what a SQL text says of our options; None: nothing."""
    tokens = tokenize(text)
    try:
        word, first = next(tokens, None), next(tokens, None)
    except LexicalError:
        return None
    resets = word is not None and word.upper == "RESET"
    if word is None or not (resets or word.upper == "SET"):
        return None
    if first is None or first.text == ";":
        return Said("", resets=True) if resets else None
    said = text[first.start :].rstrip("; \t\r\n")
    if first.kind is TokenKind.QUOTED_NAME:
        key, rest = first.text[1:-1], said[first.end - first.start :]
    else:
        key, equals, rest = said.partition("=")
        rest = equals + rest
    if not is_option(key := key.strip()):
        return None
    _, equals, value = rest.partition("=")
    return Said(key, value.strip() if equals else None, resets)


def is_option(key: str) -> bool:
    """Whether a setting is ours."""
    return key.startswith(PREFIX)


def check(key: str, value: str) -> None:
    """Raise RequestError for an option that there is not, or a value that it can't have."""
    _of(key, value)


def _of(key: str, value: str) -> Any:
    read = _READ.get(key)
    if read is None:
        raise refused(
            ErrorClass.BAD_REQUEST,
            f"there is no option {key[:100]}",
            f"known are {', '.join(_READ)}",
        )
    return read(value, key)


@dataclass(frozen=True, slots=True)
class Options:
    """A session's options as values."""

    freshness: Freshness
    write_concern: WriteConcern | None
    apply_budget_s: float | None
    fanout: Fanout | None
    timeout_s: float


def defaults(reads: Reads, statement_s: float) -> dict[str, str]:
    """Return what options are that nobody set; a program sees at least what it wrote."""
    level = reads.consistency
    return {
        "haproc.consistency": (Consistency.SESSION if level is Consistency.ANY else level).value,
        "haproc.acceptable_offset_lag": str(reads.acceptable_offset_lag),
        "haproc.timeout_s": f"{statement_s:g}",
    }


def in_force(
    given: Mapping[str, str], metadata: Mapping[str, str], default: Mapping[str, str]
) -> dict[str, str]:
    """Return all options that are set, by name: by the session, its URL, or by default."""
    of_url = {key: metadata[name] for key in _READ if (name := _metadata_name(key)) in metadata}
    return {**default, **of_url, **given}


def _metadata_name(key: str) -> str:
    return key.replace(".", "-")


def read(found: Mapping[str, str]) -> Options:
    """Return options as values; raises RequestError."""
    values = {key: _of(key, value) for key, value in found.items()}
    freshness = Freshness(
        values["haproc.consistency"],
        values["haproc.acceptable_offset_lag"],
        values.get("haproc.after_offset", 0),
    )
    return Options(
        freshness,
        values.get("haproc.write_concern"),
        values.get("haproc.apply_budget_s"),
        values.get("haproc.fanout"),
        values["haproc.timeout_s"],
    )
