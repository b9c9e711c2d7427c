"""The call Config: Spark's settings of a session, and HAProc's own options (``haproc.…``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from haproc import protos, wire
from haproc.classify import session_settings
from haproc.classify.model import BUDGET_MAX_S, WriteConcern
from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.config.model import Consistency, Reads
from haproc.doors.http import reading
from haproc.failure import ErrorClass, refused
from haproc.route import streams
from haproc.route.model import Fanout, Freshness
from haproc.sessions.journal import ConfEntry
from haproc.statements.request import TIMEOUT_MAX_S

# HAProc's options of a session: settings below ``haproc.``, parameters of its URL.
#
# A parameter of an ``sc://`` URL that PySpark does not know (``haproc-consistency=…``) comes with
# every call as metadata; a setting of the session counts before it.


PREFIX: Final = "haproc."
_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "haproc.consistency": lambda value, name: reading.choice({name: value}, name, Consistency),
    "haproc.acceptable_offset_lag": lambda value, name: reading.whole_number(value, name, 19),
    "haproc.after_offset": lambda value, name: reading.whole_number(value, name, 19),
    "haproc.write_concern": lambda value, name: reading.choice({name: value}, name, WriteConcern),
    "haproc.apply_budget_s": lambda value, name: reading.seconds(
        reading.seconds_in(value, name), name, BUDGET_MAX_S
    ),
    "haproc.fanout": lambda value, name: reading.choice({name: value}, name, Fanout),
    "haproc.timeout_s": lambda value, name: reading.seconds(
        reading.seconds_in(value, name), name, TIMEOUT_MAX_S
    ),
}


_METADATA: Final = {key: key.replace(".", "-") for key in _READ}
_AGE: Final = "haproc-age-s"
"""The metadata key by which haclient says how many seconds ago it sent a request first."""


def age_s(metadata: Mapping[str, str]) -> float:
    """Return the seconds since the request was first sent; 0 if not given. Raises RequestError."""
    return reading.age(reading.seconds_in(metadata[_AGE], _AGE)) if _AGE in metadata else 0.0


@dataclass(frozen=True, slots=True)
class OptionChange:
    """A SET or RESET of HAProc's options. ``key``: the option; empty: RESET of all.

    ``value`` is None for a RESET, and for a SET that only asks for the present value.
    """

    key: str
    value: str | None = None
    resets: bool = False


def change_in(text: str) -> OptionChange | None:
    """Return the SET or RESET of HAProc's options that a SQL text is; None if it is none."""
    tokens = tokenize(text)
    try:
        word, first = next(tokens, None), next(tokens, None)
    except LexicalError:
        return None
    resets = word is not None and word.upper == "RESET"
    if word is None or not (resets or word.upper == "SET"):
        return None
    if first is None or first.text == ";":
        return OptionChange("", resets=True) if resets else None
    rest_of = text[first.start :].rstrip("; \t\r\n")
    if first.kind is TokenKind.QUOTED_NAME:
        key, rest = first.text[1:-1], rest_of[first.end - first.start :]
    else:
        key, equals, rest = rest_of.partition("=")
        rest = equals + rest
    if not is_option(key := key.strip()):
        return None
    _, equals, value = rest.partition("=")
    return OptionChange(key, value.strip() if equals else None, resets)


def is_option(key: str) -> bool:
    """True if the setting is an option of HAProc's, not a setting of Spark's."""
    return key.startswith(PREFIX)


def value_of(key: str, value: str) -> Any:
    """Return an option's text as a value; RequestError for an unknown option or a wrong value."""
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
    """HAProc's options for a session's statements, as values instead of texts."""

    freshness: Freshness
    write_concern: WriteConcern | None
    apply_budget_s: float | None
    fanout: Fanout | None
    timeout_s: float


def defaults(reads: Reads, statement_s: float) -> dict[str, str]:
    """Return the values of options that nobody set; by these a program sees its own writes."""
    level = reads.consistency
    return {
        "haproc.consistency": (Consistency.SESSION if level is Consistency.ANY else level).value,
        "haproc.acceptable_offset_lag": str(reads.acceptable_offset_lag),
        "haproc.timeout_s": f"{statement_s:g}",
    }


def in_force(
    given: Mapping[str, str], metadata: Mapping[str, str], default: Mapping[str, str]
) -> dict[str, str]:
    """Return all options by name: those set in the session, else in its URL, else the defaults."""
    of_url = {key: metadata[name] for key, name in _METADATA.items() if name in metadata}
    return {**default, **of_url, **given}


def read(found: Mapping[str, str]) -> Options:
    """Return these options (texts, by name) as values; raises RequestError."""
    values = {key: value_of(key, value) for key, value in found.items()}
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


# Config: Spark's settings of a session, and HAProc's options.
#
# A session may set the same settings as by SET. Settings below ``haproc.`` never reach Spark.


_base = protos.base
_COMPRESSION: Final = "spark.connect.session.planCompression.threshold"
"""A setting that tells clients when to compress plans. They must not, since HAProc reads plans."""
_NEVER: Final = "-1"


def reserved(operation: Any) -> list[str]:
    """Return the keys that a Config operation sets openly and that no session may change."""
    if operation.WhichOneof("op_type") != "set" or operation.set.silent:
        return []
    return [pair.key for pair in operation.set.pairs if _is_reserved(pair.key)]


def _is_reserved(key: str) -> bool:
    return not is_option(key) and bool(session_settings.reserved(key))


def get_request(keys: Sequence[str]) -> bytes:
    """Return the serialized request for the values of these settings."""
    request = _base.ConfigRequest()
    request.operation.get_option.keys.extend(keys)
    return bytes(request.SerializeToString())


def setting(values: Mapping[str, str]) -> bytes:
    """Return the serialized request that sets these settings."""
    request = _base.ConfigRequest()
    for key, value in values.items():
        request.operation.set.pairs.add(key=key, value=value)
    return bytes(request.SerializeToString())


def values(response: bytes) -> dict[str, str]:
    """Return the values, by key, in the response to `get_request`'s request; without unset ones."""
    pairs = wire.parsed(_base.ConfigResponse, response).pairs
    return {pair.key: pair.value for pair in pairs if pair.HasField("value")}


def checked(operation: Any, held: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Return a Config operation without the parts that need no action; RequestError if not allowed.

    ``held``: the present values of `reserved` settings; setting such a value again is left out.
    Reserved settings that are set silently (by a session's builder) are left out, too, as Spark
    ignores those that it does not allow: see `taken`.
    """
    kind = operation.WhichOneof("op_type")
    if kind is None:
        raise refused(ErrorClass.BAD_REQUEST, "a Config request says nothing to do")
    if kind == "unset":
        for key in operation.unset.keys:
            _check(key)
    if kind != "set":
        return operation
    changed = _base.ConfigRequest.Operation()
    changed.CopyFrom(operation)
    del changed.set.pairs[:]
    for pair in operation.set.pairs:
        if is_option(pair.key):
            value_of(pair.key, pair.value)
        elif held.get(pair.key) == pair.value:
            continue
        elif not operation.set.silent:
            _check(pair.key)
        elif _is_reserved(pair.key):
            continue
        changed.set.pairs.append(pair)
    return changed


def _check(key: str) -> None:
    if not is_option(key) and (error := session_settings.refusal(key)) is not None:
        raise streams.refused(error)


def taken(entry: ConfEntry, held: Mapping[str, str]) -> ConfEntry:
    """Return the silently set values that count: HAProc's options, and those that Spark has taken.

    ``held``: the values that Spark has now.
    """
    sets = (pair for pair in entry.sets if is_option(pair[0]) or pair in held.items())
    return ConfEntry(tuple(sets))


def for_spark(operation: Any) -> Any | None:
    """Return a checked Config operation's part about Spark's settings; None if it has none."""
    kind = operation.WhichOneof("op_type")
    inner = getattr(operation, kind)
    if kind == "get_all":
        return operation
    left = _base.ConfigRequest.Operation()
    left.CopyFrom(operation)
    named = "pairs" if kind in ("set", "get_with_default") else "keys"
    kept = [each for each in getattr(inner, named) if not is_option(_key(each))]
    del getattr(getattr(left, kind), named)[:]
    getattr(getattr(left, kind), named).extend(kept)
    return left if kept else None


def _key(item: Any) -> str:
    return str(getattr(item, "key", item))


def entry(operation: Any) -> ConfEntry | None:
    """Return what a checked Config operation sets and unsets, as an entry of the session's journal.

    None if it changes nothing.
    """
    match operation.WhichOneof("op_type"):
        case "set" if operation.set.pairs:
            return ConfEntry(sets=tuple((each.key, each.value) for each in operation.set.pairs))
        case "unset" if operation.unset.keys:
            return ConfEntry(unsets=tuple(operation.unset.keys))
        case _:
            return None


def answer(operation: Any, response: bytes, found: Mapping[str, str]) -> bytes:
    """Return Spark's response with HAProc's options added. ``found``: the options that apply.

    Raises RequestError if the client asks for the value of an option that is not set.
    """
    kind = operation.WhichOneof("op_type")
    parsed = wire.parsed(_base.ConfigResponse, response)
    if kind == "get_all":
        _add_all(operation.get_all, parsed, found)
    elif kind in ("get", "get_option", "get_with_default", "is_modifiable"):
        inner = getattr(operation, kind)
        wanted = inner.pairs if kind == "get_with_default" else inner.keys
        theirs = iter(list(parsed.pairs))
        pairs = [_pair(kind, each, found) or next(theirs) for each in wanted]
        del parsed.pairs[:]
        parsed.pairs.extend(pairs)
    for pair in parsed.pairs:
        if kind == "is_modifiable" and _is_reserved(pair.key):
            pair.value = "false"
        elif pair.key == _COMPRESSION:
            pair.value = _NEVER
    return bytes(parsed.SerializeToString())


def _add_all(wanted: Any, parsed: Any, found: Mapping[str, str]) -> None:
    prefix = wanted.prefix if wanted.HasField("prefix") else ""
    for key, value in found.items():
        if key.startswith(prefix):
            parsed.pairs.add(key=key.removeprefix(prefix), value=value)


def _pair(kind: str, wanted: Any, found: Mapping[str, str]) -> Any | None:
    key = _key(wanted)
    if not is_option(key):
        return None
    pair = _base.KeyValue(key=key)
    if kind == "is_modifiable":
        pair.value = "true"
    elif key in found:
        pair.value = found[key]
    elif kind == "get_with_default":
        if wanted.HasField("value"):
            pair.value = wanted.value
    elif kind == "get":
        message = f"the option {key[:100]} is not set"
        raise refused(ErrorClass.BAD_REQUEST, message, "set it first")
    return pair
