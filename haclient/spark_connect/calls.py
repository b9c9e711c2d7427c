"""Sends Spark Connect's three kinds of gRPC calls to a ring, with errors as PySpark expects."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from haclient.exceptions import DatabaseError
from haclient.protocol import Broken, Busy, WireError, outcome_of
from haclient.request_ids import Age
from haclient.settings import Server
from haclient.spark_connect.links import Link, Links
from haclient.spark_connect.status import CallEnd, failed
from haclient.sync.ring import Work
from haclient.sync.transport import now

# Errors in the form that PySpark expects of a channel.


_CODES = {
    "HACLIENT_DEADLINE": grpc.StatusCode.DEADLINE_EXCEEDED,
    "HACLIENT_CANCELLED": grpc.StatusCode.CANCELLED,
}


class ChannelError(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """An error of a call that this client ended, without a status from a server."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the gRPC status code for the reason."""
        return self._code

    def details(self) -> str:
        """Return the reason as text."""
        return self._details

    def initial_metadata(self) -> tuple[Any, ...]:
        """Return an empty tuple: no server sent metadata."""
        return ()

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return an empty tuple: no server sent metadata."""
        return ()

    def is_active(self) -> bool:
        """Return False: the call has ended."""
        return False

    def time_remaining(self) -> float | None:
        """Return None: the call has ended."""
        return None

    def cancel(self) -> bool:
        """Return False: the call has ended already."""
        return False

    def add_callback(self, callback: Any) -> bool:
        """Return False: the call has ended, so the callback is not called."""
        return False


class Lost(ChannelError):
    """The server failed in the middle of a stream; PySpark asks again, and another one answers."""

    def __init__(self, details: str, cause: BaseException) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, details)
        self.__cause__ = cause


class GivenUp(ChannelError):
    """Every server was tried, for as long as the policy allows; PySpark must not try again."""

    def __init__(self, error: DatabaseError) -> None:
        code = _CODES.get(error.error_class, grpc.StatusCode.UNAVAILABLE)
        super().__init__(code, f"[{error.error_class}] {error.message}; outcome {error.outcome}")
        self.failure = error.failure


def call_end_of(error: grpc.RpcError) -> CallEnd:
    """Return how a failed call ended, from the server's error details.

    The error class is empty if a server sent none, and None if the status is not from a server.
    """
    code, details = error.code().name, error.details() or ""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # its details belong to another status
        status = None
    if status is None:
        return CallEnd(code, details, None)
    end = CallEnd(code, details, "")
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            end = replace(
                end,
                error_class=info.metadata.get("errorClass", info.reason),
                outcome=outcome_of(info.metadata.get("outcome")),
            )
        elif detail.Unpack(retry):
            end = replace(end, retry_after_s=retry.retry_delay.ToTimedelta().total_seconds())
    return end


# The three kinds of calls that Spark Connect has, each made at one server after another.
#
# A call is sent again in the cases in which PySpark itself would send it again to an unavailable
# server; ExecutePlan always under one operation id, by which HAProcs recognise it. Two cases are
# left to PySpark: it makes a stream of requests again if some were sent, and it attaches again to a
# begun stream of responses, behind the last response that it has.


T = TypeVar("T")
_AGE: Final = "haproc-age-s"
"""The header with the request's age, by which HAProc searches the log for an earlier copy of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one gRPC call, as its caller gave them, except the deadline."""

    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any

    def passed(self, deadline: float, age_s: float = 0.0) -> dict[str, Any]:
        """Return the arguments for gRPC's call; its timeout is the time until ``deadline``.

        ``age_s``: the time since the first attempt, if the call is sent again.
        """
        metadata = self.metadata
        if age_s:
            metadata = (*(metadata or ()), (_AGE, f"{age_s:.3f}"))
        return {
            "timeout": None if deadline == math.inf else max(0.001, deadline - now()),
            "metadata": metadata,
            "credentials": self.credentials,
            "wait_for_ready": self.wait_for_ready,
            "compression": self.compression,
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a call: a response, or an error that every server would give."""

    response: Any = None
    call: Any = None
    error: grpc.RpcError | None = None
    lost: WireError | None = None
    """Set if the server failed and only PySpark can send the request again."""
    server: Server | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One method of Spark Connect's service, which can be called at any server."""

    links: Links
    name: str
    make: Callable[[grpc.Channel], Any]
    """Makes gRPC's callable of the method for a channel."""

    def call(self, server: Server, make: Callable[[Any], T]) -> tuple[Link, T] | Ended:
        """Call the method at a server; return the connection and the result of ``make``.

        The caller must then leave the connection. Returns `Ended` for an error that every server
        would give; raises WireError for other errors.
        """
        link = self.links.enter(server)
        try:
            return link, make(link.callable(self.name, self.make))
        except grpc.RpcError as error:
            wire = judged(self.links, link, error)
            # A busy server keeps the connection, so that another attempt is cheap.
            self.links.leave(link, broken=wire is not None and not isinstance(wire, Busy))
            if wire is not None:
                raise wire from error
            return Ended(error=error)
        except ValueError as error:  # the watch has closed the connection
            self.links.leave(link, broken=True)
            raise Broken(f"the connection to {server} was closed") from error
        except BaseException:
            self.links.leave(link)
            raise


def judged(links: Links, link: Link, error: grpc.RpcError) -> WireError | None:
    """Return what a call's error means for failover; None if the error is the request's answer."""
    return None if links.closed else failed(link.server.url, call_end_of(error), link.hung)


def unary(method: Method, request: Any, options: Options) -> Work[Ended]:
    """Return the `Work` that makes a call with one request and one response at a server."""

    def attempt(server: Server, deadline: float) -> Ended:
        passed = options.passed(deadline)
        made = method.call(server, lambda at: at.with_call(request, **passed))
        return made if isinstance(made, Ended) else _well(method.links, made)

    return Work(attempt, lambda: method.links.closed)


def upload(method: Method, requests: Iterable[Any], options: Options) -> Work[Ended]:
    """Return the `Work` that makes a call with a stream of requests and one response."""
    source = _Source(iter(requests))

    def attempt(server: Server, deadline: float) -> Ended:
        passed, reader = options.passed(deadline), _Reader(source)
        try:
            made = method.call(server, lambda at: at.with_call(reader, **passed))
        except WireError as error:
            reader.end()
            if not source.taken:
                raise
            return Ended(error=Lost(str(error), error), lost=error, server=server)
        return made if isinstance(made, Ended) else _well(method.links, made)

    return Work(attempt, lambda: method.links.closed)


def _well(links: Links, made: tuple[Link, tuple[Any, Any]]) -> Ended:
    link, (response, call) = made
    links.received(link)
    links.leave(link)
    return Ended(response, call)


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream of responses whose first response has arrived, or which ended without any."""

    link: Link
    call: Any
    first: Any
    """The first response; None if there was none."""


def download(method: Method, request: Any, options: Options) -> Work[Begun | Ended]:
    """Return the `Work` that makes a call with one request and a stream of responses.

    It ends with the first response.
    """
    age = Age()

    def attempt(server: Server, deadline: float) -> Begun | Ended:
        passed = options.passed(deadline, age.now())
        made = method.call(server, lambda at: _begun(at(request, **passed)))
        if isinstance(made, Ended):
            return made
        link, (call, first) = made
        return Begun(link, call, first)

    return Work(attempt, lambda: method.links.closed)


def _begun(call: Any) -> tuple[Any, Any]:
    try:
        return call, next(call, None)
    except BaseException:
        call.cancel()
        raise


def named(request: Any) -> str:
    """Return the request's Spark Connect operation id; give it one if it has none.

    HAProcs recognise the repeated request by it.
    """
    if not request.operation_id:
        request.operation_id = str(uuid.uuid4())
    return str(request.operation_id)


class _Source:
    """A caller's stream of requests; once an attempt has read one, no other attempt can be made."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self.requests = requests
        self.lock = threading.Lock()
        self.taken = False


class _Reader(Iterator[Any]):
    """The stream of requests for one attempt, read by a thread of gRPC that may outlive it."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._ended = False

    def __next__(self) -> Any:
        with self._source.lock:
            if self._ended:
                raise StopIteration
            self._source.taken = True
            return next(self._source.requests)

    def end(self) -> None:
        """Give gRPC no more requests; wait until a read that is under way has ended."""
        with self._source.lock:
            self._ended = True
