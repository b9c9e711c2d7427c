"""Writes whose rows are computed at their place in the order.

A write that feeds a query's rows into a table, and would not feed the same ones everywhere, is in
the log as it stands. Its rows come when its turn has come: one cluster runs the query, everything
before it applied and nothing after it, and puts what it gave into the log:

- ``rows``: the statement with its rows in place of the query, or the error that it came to. The
  first one in the log counts for all, for the cluster that computed it, too.
- ``passed``: a cluster could not run the query, for reasons of its own: another one is to.

``epoch`` is the offset of the writer's claim, see `haproc.replicate.heard.claims`. What a replaced
process says is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dmq import Json, Record
from haproc.engine.statement import Statement
from haproc.replicate.records.failures import Failure, failure_json, failure_of

KINDS: Final = frozenset({"rows", "passed"})


@dataclass(frozen=True, slots=True)
class QueryWrite:
    """A statement whose rows are yet to be computed; its query begins at ``query_at``.

    ``of_session``: the query rests on the session of the client that sent it (temporary views,
    variables), so it can be run there only.
    """

    sql: str
    query_at: int
    of_session: bool = False

    @property
    def head(self) -> str:
        """The text before the query."""
        return self.sql[: self.query_at]

    @property
    def query(self) -> str:
        """The query."""
        return self.sql[self.query_at :]


Write: TypeAlias = Statement | QueryWrite
"""What an operation does: a statement, or one whose rows another record has."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the query of the operation at ``offset`` came to, on the cluster ``by``.

    ``sql`` is the statement to run everywhere, which adds ``count`` rows; with a ``failure`` the
    operation is rejected.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    sql: str = ""
    count: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """The cluster ``by`` could not run the query of the operation at ``offset``."""

    offset: int
    operation_id: str
    by: str
    epoch: int
    failure: Failure


Computed: TypeAlias = Rows | Passed


def computed_record(message: Computed) -> Record:
    """Return the log record of a message."""
    headers: dict[str, Json] = {
        "offset": message.offset,
        "by": message.by,
        "epoch": message.epoch,
        "failure": failure_json(message.failure),
    }
    if isinstance(message, Passed):
        return Record("passed", message.operation_id, headers)
    headers["count"] = message.count
    return Record("rows", message.operation_id, headers, message.sql.encode())


def computed_message(record: Record) -> Computed:
    """Return the message of a record of these kinds; KeyError, TypeError or ValueError."""
    h: Mapping[str, Any] = record.headers
    if record.kind == "passed":
        return Passed(h["offset"], record.key, h["by"], h["epoch"], Failure(*h["failure"]))
    sql, failure = record.payload.decode(), failure_of(h["failure"])
    return Rows(h["offset"], record.key, h["by"], h["epoch"], sql, h["count"], failure)
