"""The changes in a client's message to Spark, and in Spark's message to the client.

The client's session has other names on the server: an id of HAProc's, HAProc's user, and the
server's own id. So the fields with these names are replaced, and no other field is read. Requests
have at most a dozen fields: the old ones are removed. Responses may be large and many: new fields
are appended, because the last value of a repeated scalar field counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from haproc import protos, wire
from haproc.wire import varint, varint_bytes

_SESSION, _USER_CONTEXT = 1, 2
"""The numbers of the fields that every request has: the session's id and the user."""
_EXECUTE_PLAN, _EXECUTE_OPTIONS, _EXECUTE_OPERATION = 3, 5, 6
_RESPONSE_OPERATION, _RESPONSE_ID = 12, 13
"""The numbers of two fields of an ExecutePlanResponse: the operation's id, the response's id."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
FIELDS_MAX: Final = 100_000
"""The most fields of one message, without nested ones; Spark's have a dozen, or a list's. Chosen:
walking so many takes a tenth of a second."""
_BYTE_MAX = 0x7F
"""The largest number that a protobuf message writes in one byte."""
_TAG_MAX = (1 << 32) - 1
"""The largest tag of a field. Spark's parser drops higher bits, and takes the rest as the tag."""
_OPTION = protos.base.ExecutePlanRequest.RequestOption


@dataclass(frozen=True, slots=True)
class Rpc:
    """The numbers of the fields that name the session in an RPC's request and response."""

    observed: int | None
    """In the request: the server's own id of the session, as the client has learned it."""
    response_session: int
    response_server_session: int


RPCS: Final[Mapping[str, Rpc]] = {
    "ExecutePlan": Rpc(8, 1, 15),
    "ReattachExecute": Rpc(6, 1, 15),
    "AnalyzePlan": Rpc(17, 1, 15),
    "Config": Rpc(8, 1, 4),
    "AddArtifacts": Rpc(7, 2, 3),
    "ArtifactStatus": Rpc(5, 2, 3),
    "Interrupt": Rpc(7, 1, 3),
    "ReleaseExecute": Rpc(7, 1, 3),
    "ReleaseSession": Rpc(None, 1, 2),
    "FetchErrorDetails": Rpc(5, 4, 3),
    "CloneSession": Rpc(5, 1, 2),
    "GetStatus": Rpc(4, 1, 2),
}
"""The calls of spark.connect.SparkConnectService, each with its fields that name the session."""


@dataclass(frozen=True, slots=True)
class Names:
    """The two ids of a session: that of its client, and the server's own (empty: not known yet)."""

    session_id: str
    server_id: str


def to_spark(rpc: str, request: bytes, names: Names, user: str, operation_id: str = "") -> bytes:
    """Return a client's request with the names of HAProc's session in place of the client's.

    ExecutePlan gets ``operation_id``, and is made not reattachable: for reattachable streams a
    server keeps results back, and cuts the streams. Raises ValueError if ``request`` is no message.
    """
    fields = {
        _SESSION: names.session_id.encode(),
        _USER_CONTEXT: protos.base.UserContext(user_id=user).SerializeToString(),
    }
    if (observed := RPCS[rpc].observed) is not None:
        fields[observed] = names.server_id.encode()
    if rpc == "ExecutePlan":
        fields[_EXECUTE_OPERATION] = operation_id.encode()
        return _replaced(request, fields, leave_out=_reattachable)
    return _replaced(request, fields)


def fields_of(message: bytes, number: int) -> list[bytes]:
    """Return all values of the field ``number`` of a message; raises ValueError if it is none.

    For a text the last value counts; the values of a message count together, as one. Values with
    another wire type under this number are left out, as parsers of the message ignore them.
    """
    return [
        message[inner:end]
        for found, start, inner, end in top_level(message)
        if found == number and message[start] & 7 == _BYTES
    ]


def replaced_plan(request: bytes, plan: bytes) -> bytes:
    """Return the ExecutePlanRequest with ``plan`` in place of its own plan."""
    return _replaced(request, {_EXECUTE_PLAN: plan})


def with_operation(request: bytes, operation_id: str) -> bytes:
    """Return the ExecutePlanRequest with this operation id of Spark Connect."""
    return request + _field(_EXECUTE_OPERATION, operation_id.encode())


def to_client(rpc: str, names: Names, operation_id: str = "") -> bytes:
    """Return the bytes that, appended to a response, give it the client's names of the session."""
    numbers = RPCS[rpc]
    fields = [
        _field(numbers.response_session, names.session_id.encode()),
        _field(numbers.response_server_session, names.server_id.encode()),
    ]
    if operation_id:
        fields.append(_field(_RESPONSE_OPERATION, operation_id.encode()))
    return b"".join(fields)


def response_id(text: str) -> bytes:
    """Return the bytes that, appended to an ExecutePlanResponse, give it this id."""
    return _field(_RESPONSE_ID, text.encode())


def _reattachable(number: int, value: memoryview) -> bool:
    if number != _EXECUTE_OPTIONS:
        return False
    return bool(wire.parsed(_OPTION, bytes(value)).HasField("reattach_options"))


def _nothing(number: int, value: memoryview) -> bool:
    return False


def _replaced(
    message: bytes,
    fields: Mapping[int, bytes],
    leave_out: Callable[[int, memoryview], bool] = _nothing,
) -> bytes:
    """Return the message with ``fields`` in place of its own fields of the same numbers.

    A field with an empty value is only removed. Also removes the fields for which ``leave_out`` is
    True; it takes a field's number and value.
    """
    kept = [
        message[start:end]
        for number, start, inner, end in top_level(message)
        if number not in fields and not leave_out(number, memoryview(message)[inner:end])
    ]
    for number, value in fields.items():
        kept += (_head(number, value), value) if value else ()
    return b"".join(kept)


def top_level(message: bytes | memoryview) -> list[tuple[int, int, int, int]]:
    """Return for each field of a message: its number, its start, its value's start, its end.

    Raises ValueError if it is no message, or has more fields than any of Spark's.
    """
    found: list[tuple[int, int, int, int]] = []
    at, size = 0, len(message)
    while at < size:
        if len(found) == FIELDS_MAX:
            raise ValueError(f"it has more than {FIELDS_MAX:,} fields")
        # Nearly all numbers have one byte: a call for each of them took longer than all the rest.
        start, tag, at = at, message[at], at + 1
        if tag > _BYTE_MAX:
            tag, at = varint(message, start, size)
            if tag > _TAG_MAX:
                raise ValueError("no field has so high a number")
        wire, inner = tag & 7, at
        if wire == _BYTES:
            if at < size and message[at] <= _BYTE_MAX:
                length, inner = message[at], at + 1
            else:
                length, inner = varint(message, at, size)
            at = inner + length
        elif wire == _VARINT:
            _, at = varint(message, at, size)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has wire type {wire}")
        if at > size:
            raise ValueError("the message is cut short")
        found.append((tag >> 3, start, inner, at))
    return found


def _field(number: int, value: bytes) -> bytes:
    return _head(number, value) + value


def _head(number: int, value: bytes) -> bytes:
    tag, size = number << 3 | _BYTES, len(value)
    if tag <= _BYTE_MAX and size <= _BYTE_MAX:
        return bytes((tag, size))
    return varint_bytes(tag) + varint_bytes(size)
