"""Config: settings of the session that Spark has, and those that are ours.

A session may set what SET may. Settings below ``haproc.`` never reach Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from haproc import protos, wire
from haproc.classify import session_settings
from haproc.doors.connect import options
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route import failing
from haproc.sessions.journal import ConfEntry

_base = protos.base
_COMPRESSION: Final = "spark.connect.session.planCompression.threshold"
"""Asked for by clients that compress large plans: ours are not to, since they are read here."""
_NEVER: Final = "-1"
NOTHING_HELD: Final[Mapping[str, str]] = {}


def reserved(operation: Any) -> list[str]:
    """Return what an operation is to set and no session may change."""
    if operation.WhichOneof("op_type") != "set" or operation.set.silent:
        return []
    return [pair.key for pair in operation.set.pairs if _is_reserved(pair.key)]


def _is_reserved(key: str) -> bool:
    return not options.is_option(key) and bool(session_settings.reserved(key))


def asking(keys: Sequence[str]) -> bytes:
    """Return the request that asks for the values of settings."""
    request = _base.ConfigRequest()
    request.operation.get_option.keys.extend(keys)
    return bytes(request.SerializeToString())


def setting(values: Mapping[str, str]) -> bytes:
    """Return the request that sets settings."""
    request = _base.ConfigRequest()
    for key, value in values.items():
        request.operation.set.pairs.add(key=key, value=value)
    return bytes(request.SerializeToString())


def values(response: bytes) -> dict[str, str]:
    """Return the values in the answer to that."""
    pairs = wire.parsed(_base.ConfigResponse, response).pairs
    return {pair.key: pair.value for pair in pairs if pair.HasField("value")}


def checked(operation: Any, held: Mapping[str, str] = NOTHING_HELD) -> Any:
    """Return the operation with no more than a session may do; raises RequestError.

    ``held``: the present values of what is `reserved`; to set one again changes nothing.

    What is to be set silently (the settings of a builder) is passed over, like what Spark itself
    does not let be set: see `taken`.
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
        if options.is_option(pair.key):
            options.check(pair.key, pair.value)
        elif held.get(pair.key) == pair.value:
            continue
        elif not operation.set.silent:
            _check(pair.key)
        elif _is_reserved(pair.key):
            continue
        changed.set.pairs.append(pair)
    return changed


def _check(key: str) -> None:
    if not options.is_option(key) and (error := session_settings.refusal(key)) is not None:
        raise failing.refused(error)


def taken(entry: ConfEntry, held: Mapping[str, str]) -> ConfEntry:
    """Return what is changed by what was set silently, given the values that Spark has now."""
    sets = (pair for pair in entry.sets if options.is_option(pair[0]) or pair in held.items())
    return ConfEntry(tuple(sets))


def for_spark(operation: Any) -> Any | None:
    """Return what is left for Spark of a checked operation; None: nothing."""
    kind = operation.WhichOneof("op_type")
    inner = getattr(operation, kind)
    if kind == "get_all":
        return operation
    left = _base.ConfigRequest.Operation()
    left.CopyFrom(operation)
    named = "pairs" if kind in ("set", "get_with_default") else "keys"
    kept = [each for each in getattr(inner, named) if not options.is_option(_key(each))]
    del getattr(getattr(left, kind), named)[:]
    getattr(getattr(left, kind), named).extend(kept)
    return left if kept else None


def _key(item: Any) -> str:
    return str(getattr(item, "key", item))


def entry(operation: Any) -> ConfEntry | None:
    """Return what a checked operation changes, for the session's journal; None: nothing."""
    match operation.WhichOneof("op_type"):
        case "set" if operation.set.pairs:
            return ConfEntry(sets=tuple((each.key, each.value) for each in operation.set.pairs))
        case "unset" if operation.unset.keys:
            return ConfEntry(unsets=tuple(operation.unset.keys))
        case _:
            return None


def answer(operation: Any, response: bytes, found: Mapping[str, str]) -> bytes:
    """Return Spark's answer with ours in it; ``found`` are the options in force.

    Raises RequestError for an option that has no value where one is asked for.
    """
    kind = operation.WhichOneof("op_type")
    told = wire.parsed(_base.ConfigResponse, response)
    if kind == "get_all":
        _tell_all(operation.get_all, told, found)
    elif kind in ("get", "get_option", "get_with_default", "is_modifiable"):
        inner = getattr(operation, kind)
        asked = inner.pairs if kind == "get_with_default" else inner.keys
        theirs = iter(list(told.pairs))
        pairs = [_pair(kind, each, found) or next(theirs) for each in asked]
        del told.pairs[:]
        told.pairs.extend(pairs)
    for pair in told.pairs:
        if kind == "is_modifiable" and _is_reserved(pair.key):
            pair.value = "false"
        elif pair.key == _COMPRESSION:
            pair.value = _NEVER
    return bytes(told.SerializeToString())


def _tell_all(asked: Any, told: Any, found: Mapping[str, str]) -> None:
    prefix = asked.prefix if asked.HasField("prefix") else ""
    for key, value in found.items():
        if key.startswith(prefix):
            told.pairs.add(key=key.removeprefix(prefix), value=value)


def _pair(kind: str, asked: Any, found: Mapping[str, str]) -> Any | None:
    key = _key(asked)
    if not options.is_option(key):
        return None
    pair = _base.KeyValue(key=key)
    if kind == "is_modifiable":
        pair.value = "true"
    elif key in found:
        pair.value = found[key]
    elif kind == "get_with_default":
        if asked.HasField("value"):
            pair.value = asked.value
    elif kind == "get":
        raise _not_set(key)
    return pair


def _not_set(key: str) -> RequestError:
    return refused(ErrorClass.BAD_REQUEST, f"the option {key[:100]} is not set", "set it first")
