"""From a failed gRPC call to an EngineError.

Spark packs an ErrorInfo into the call's trailing metadata: the outermost error's class, SQLSTATE,
Java classes and (a few) parameters, its message cut at 2,048 characters. The whole message, its
places in the text and the causes are fetched (FetchErrorDetails) where they matter: not for faults
of the cluster, which go to its operators. The server keeps them for a while under an id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from haproc import protos, wire
from haproc.engine.errors import (
    EngineError,
    ErrorKind,
    Link,
    NoQueryError,
    RelayedError,
    kind_of_chain,
    kind_of_code,
    needs_causes,
)
from haproc.failure import ErrorClass
from haproc.spark_error import NO_DETAILS, Context, Details, details

_MESSAGE_CUT_AT = 2000
"""Spark cuts a status message at 2,048 characters; longer ones are asked for in full."""
_DETAILS = "grpc-status-details-bin"
_REFUSALS = (
    *(ErrorClass.NO_QUERY, ErrorClass.PATH, ErrorClass.OPTION, ErrorClass.TABLE_NAME),
    ErrorClass.NONDETERMINISTIC,
)
"""The beginnings of the plugin's messages (haproc/spark)."""
_OF_PLUGIN = ("java.lang.IllegalArgumentException",)
_OF_FRAME = protos.base.FetchErrorDetailsResponse.QueryContext.DATAFRAME


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failed call according to its trailing metadata; ``link`` is None if Spark gave no error."""

    code: str
    message: str
    link: Link | None = None
    error_id: str = ""
    details: Details = NO_DETAILS

    @property
    def refusal(self) -> tuple[str, str]:
        """The plugin's reason for a refusal: our error class and the rest; both may be empty."""
        # The plugin has no error class of Spark's to give: those are a closed list.
        link, (error_class, found, rest) = self.link, self.message.partition(": ")
        is_ours = link is not None and not link.error_class and link.java_classes[:1] == _OF_PLUGIN
        return (error_class, rest) if is_ours and found and error_class in _REFUSALS else ("", "")

    @property
    def wants_details(self) -> bool:
        """True if a request for the whole error would add something."""
        if self.link is None or not self.error_id or self.refusal[0]:
            return False
        cut = len(self.message) >= _MESSAGE_CUT_AT
        if cut or not self.link.error_class or needs_causes(self.link):
            return True
        return kind_of_chain([self.link]) is ErrorKind.APPLICATION

    def error(self) -> EngineError:
        """Return the error that this failure amounts to while nothing is known of its causes."""
        if self.link is None:
            kind = kind_of_code(self.code)
            message = self.message or "no word about what went wrong"
            return EngineError(kind, f"{self.code}: {message}", error_class=self.code)
        refusal, parameters = self.refusal
        if refusal == ErrorClass.NO_QUERY:
            return NoQueryError(tuple(parameters.split(", ")), self.details)
        if refusal:
            return EngineError(ErrorKind.APPLICATION, parameters, error_class=refusal)
        return EngineError(
            kind_of_chain([self.link], whole=False),
            self.message,
            error_class=self.link.error_class,
            sqlstate=self.link.sqlstate,
            details=self.details,
        )


def relayed(error: grpc.aio.AioRpcError) -> RelayedError:
    """Return a failed call in the form for clients that get Spark's own words."""
    failed = decode(error)
    packed = next((v for k, v in error.trailing_metadata() or () if k == _DETAILS), b"")
    return RelayedError(failed.error(), failed.code, failed.message, bytes(packed))


def decode(error: grpc.aio.AioRpcError) -> CallFailure:
    """Read a failed call's code and what Spark packed into its trailing metadata."""
    code = error.code().name
    message = error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            info = _error_info(value)
            if info is not None:
                return _with_info(code, message, dict(info.metadata))
    return CallFailure(code, message)


def _error_info(packed: bytes) -> Any | None:
    try:
        status = wire.parsed(status_pb2.Status, packed)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return info
    except ValueError:  # a proxy in between may have cut the metadata
        pass
    return None


def _with_info(code: str, message: str, metadata: dict[str, str]) -> CallFailure:
    try:
        java_classes = tuple(str(name) for name in json.loads(metadata.get("classes", "[]")))
    except ValueError:
        java_classes = ()
    try:
        given = json.loads(metadata.get("messageParameters", "{}"))
        parameters = {str(name): str(value) for name, value in given.items()}
    except (ValueError, AttributeError):
        parameters = {}
    link = Link(metadata.get("errorClass", ""), metadata.get("sqlState", ""), java_classes)
    described = details(java_classes, parameters)
    return CallFailure(code, message, link, metadata.get("errorId", ""), described)


def error_with_details(failure: CallFailure, response: Any) -> EngineError:
    """Return the error that a failure amounts to, given a FetchErrorDetailsResponse."""
    if not response.HasField("root_error_idx") or failure.link is None:
        return failure.error()
    chain, described = [failure.link], [failure.details]
    errors = list(response.errors)
    index, messages = response.root_error_idx, [failure.message]
    seen: set[int] = set()
    while 0 <= index < len(errors) and index not in seen:
        seen.add(index)
        link, message = _link(errors[index]), errors[index].message
        if len(seen) == 1:
            link = _merged(failure.link, link)
            chain, messages = [link], [message or failure.message]
            described = [_details(link, errors[index])]
        else:
            chain.append(link)
            messages.append(message)
            described.append(_details(link, errors[index]))
        if not errors[index].HasField("cause_idx"):
            break
        index = errors[index].cause_idx
    at = _shown(chain)
    return EngineError(
        kind_of_chain(chain),
        messages[at] or messages[0],
        error_class=chain[at].error_class,
        sqlstate=chain[at].sqlstate,
        details=described[at],
    )


def _details(link: Link, error: Any) -> Details:
    throwable = error.spark_throwable
    contexts = (
        Context(
            each.context_type == _OF_FRAME,
            each.object_type,
            each.object_name,
            each.start_index,
            each.stop_index,
            each.fragment,
            each.call_site,
            each.summary,
        )
        for each in throwable.query_contexts
    )
    return details(link.java_classes, dict(throwable.message_parameters), contexts)


def _link(error: Any) -> Link:
    throwable = error.spark_throwable
    return Link(throwable.error_class, throwable.sql_state, tuple(error.error_type_hierarchy))


def _merged(first: Link, second: Link) -> Link:
    return Link(
        first.error_class or second.error_class,
        first.sqlstate or second.sqlstate,
        first.java_classes or second.java_classes,
    )


def _shown(chain: list[Link]) -> int:
    """Return the client's error: the first that decides and has a class, else the first with
    one."""
    named = [at for at, link in enumerate(chain) if link.error_class]
    return next((at for at in named if not needs_causes(chain[at])), named[0] if named else 0)
