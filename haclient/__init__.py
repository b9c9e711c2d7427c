"""A client for HAProc that goes on when a server fails; PEP 249, blocking and asyncio.

    with haclient.connect("http://a:8080,http://b:8080") as connection:
        cursor = connection.execute("SELECT * FROM sales WHERE id = ?", [7])
        print(cursor.fetchall(), cursor.ha["cluster"])

Layers from top to bottom; each uses only those below it:

- `Cursor` and `Connection`: PEP 249;
- `haclient.sync.ring`: sends a request to the servers until one of them answers;
- `haclient.failover`: decides which server is next, and when to give up; without input or output;
- `haclient.sync.transport`: HTTP.

`haclient.aio` has the same layers for asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haclient.exceptions import (
    DatabaseError,
    DataError,
    Error,
    FailureKind,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    Outcome,
    ProgrammingError,
    Warning,
)
from haclient.settings import Failover, make_settings
from haclient.sync.connection import Connection
from haclient.sync.cursor import Cursor
from haclient.type_objects import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "Failover",
    "FailureKind",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "Outcome",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "spark",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 2
"""Threads may share the module and connections, each with cursors of its own."""
paramstyle = "qmark"
"""Markers are ``?``; if the parameters are a mapping, they are ``:name`` (style ``named``)."""


def connect(
    servers: str | Iterable[str],
    *,
    token: str | None = None,
    user: str | None = None,
    ca_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    catalog: str | None = None,
    schema: str | None = None,
    timeout_s: float = 300.0,
    buffer_bytes_max: int = 64 << 20,
    on_failover: Callable[[Failover], None] | None = None,
    order: str = "ordered",
    client_number: int | None = None,
    discover: bool = True,
    hedge_after_s: float | str | None = None,
    consistency: str | None = None,
    acceptable_offset_lag: int | None = None,
    after_offset: int | None = None,
    **policy: Any,
) -> Connection:
    """Return a connection to the ring (nothing is sent yet).

    - ``servers``: ``"http://a:8080,b:8080"`` or a list, in order of preference;
    - ``token``: identifies the user to the servers; ``user``: a label for their access logs;
    - ``ca_file``: certificates (PEM) to trust for ``https`` servers instead of the system's;
    - ``certificate_file``, ``key_file``: the client's own, for servers that ask for one;
    - ``catalog``, ``schema``: where names without them are looked up;
    - ``timeout_s``: the time limit of a request, over all attempts;
    - ``buffer_bytes_max``: a larger result is streamed, not read completely first;
    - ``on_failover``: called with each `Failover`;
    - ``order``: of the servers: ``ordered`` (as listed), ``nearest``, or ``spread`` (each client
      has its own order, chosen by ``client_number``, or at random);
    - ``discover``: True: learn the ring's other servers from those listed;
    - ``hedge_after_s``: a query without an answer after this time (seconds, or ``"p95"`` of the
      recent queries) is also sent to a second server;
    - ``consistency``: the read level of queries (``any``, ``bounded`` by ``acceptable_offset_lag``
      records of the log, ``session``, ``linearizable``);
    - ``after_offset``: the property of this name of another connection; session reads of this
      connection then show what the other one wrote and read.

    All other options are the fields of `haclient.failover.Policy`. Raises InterfaceError.
    """
    settings = make_settings(
        servers,
        token=token,
        user=user,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
        catalog=catalog,
        schema=schema,
        timeout_s=timeout_s,
        buffer_bytes_max=buffer_bytes_max,
        on_failover=on_failover,
        order=order,
        client_number=client_number,
        discover=discover,
        hedge_after_s=hedge_after_s,
        consistency=consistency,
        acceptable_offset_lag=acceptable_offset_lag,
        after_offset=after_offset,
        **policy,
    )
    return Connection(settings)


def spark(
    url: str,
    *,
    order: str = "ordered",
    client_number: int | None = None,
    ca_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    on_failover: Callable[[Failover], None] | None = None,
    **policy: Any,
) -> SparkSession:
    """Return a new PySpark session on the ring (nothing is sent yet); needs the extra ``pyspark``.

    ``url``: PySpark's connection string with all servers, in order of preference:
    ``"sc://a:15002,b:15002,c:15002/;token=…;use_ssl=true"``. ``ca_file``, ``certificate_file``,
    ``key_file``, ``order``, ``client_number``, ``on_failover`` (called with the Spark Connect
    operation's id as the request id) and all other options are those of `connect`. Raises
    InterfaceError.
    """
    try:
        from haclient.spark_connect.session import open_session
    except ImportError as error:
        raise InterfaceError(
            f"haclient.spark needs PySpark's client ({error}): pip install 'haproc[pyspark]'"
        ) from error
    return open_session(
        url,
        order=order,
        client_number=client_number,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
        on_failover=on_failover,
        **policy,
    )
