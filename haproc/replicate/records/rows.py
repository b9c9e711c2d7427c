"""Parts of records: application errors, and writes whose rows are computed in their turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from haproc.engine.errors import EngineError
from haproc.engine.placeholder import with_rows
from haproc.engine.statement import Statement
from haproc.spark_error import NO_DETAILS, Details, cut

# An application error as the log's records contain it.


MESSAGE_CHARACTERS_MAX: Final = 2048
"""The most characters of an error's message: as many as Spark puts into a gRPC status. A message
that quotes a statement can be that long."""


@dataclass(frozen=True, slots=True)
class ApplicationFailure:
    """An application error: the outcome that an operation has on a cluster, the same on all.

    The message is cut to MESSAGE_CHARACTERS_MAX.
    """

    error_class: str
    sqlstate: str
    message: str
    details: Details = NO_DETAILS

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", cut(self.message, MESSAGE_CHARACTERS_MAX))

    @classmethod
    def of(cls, error: EngineError) -> ApplicationFailure:
        """Return an error of a cluster's Spark in the form that records contain."""
        return cls(error.error_class, error.sqlstate, error.message, error.details)

    def same_as(self, other: ApplicationFailure) -> bool:
        """True if both errors have the same class and SQLSTATE.

        The messages are not compared, because they may name files or hosts.
        """
        return (self.error_class, self.sqlstate) == (other.error_class, other.sqlstate)


# Writes with rows that are computed in their turn.
#
# The query of a write may give other rows on other clusters. Such a write is in the log as it was
# sent. In its turn one cluster runs the query: all conflicting operations before it are applied
# then, and none after it. This cluster appends the result:
#
# - ``rows``: a plan with a placeholder (`haproc.engine.placeholder`) and the rows for it, which all
#   clusters run; or the error of the query. The first record counts for all, also for the cluster
#   that has computed it.
# - ``part``: rows that do not fit into one record. Parts come before the ``rows`` record that names
#   them. A part counts only if the first ``rows`` record names it.
# - ``passed``: a cluster could not run the query, for reasons of its own: another one must do it.
#
# All of them come after their operation: so they are not trimmed before the operation is.
#
# ``epoch`` is the offset of the writer's claim, see `haproc.replicate.log_state.members`. Records
# of a replaced process are void.


Confs: TypeAlias = tuple[tuple[str, str], ...]
"""Settings as pairs of name and value, sorted by name."""


@dataclass(frozen=True, slots=True)
class SessionRef:
    """A client's session as of a place in its journal: with the entries numbered below ``entries``.

    ``begun``: identifies the session; a new session under the same id has another value.
    """

    user: str
    session_id: str
    entries: int
    begun: str


class QueryWrite(Struct, frozen=True, tag="query"):
    """A statement that writes a query's rows, which are not computed yet.

    ``query_at``: where the query begins in ``sql``. ``of_session``: it uses the client's session
    (temporary views, variables). ``session``: that session; without it the query can run only on
    the HAProc that has the session. ``confs``: settings of the client's session that the query
    needs in addition to those of the operation.
    """

    sql: str
    query_at: int
    of_session: bool = False
    session: SessionRef | None = None
    confs: Confs = ()

    @property
    def head(self) -> str:
        """The statement's text before the query."""
        return self.sql[: self.query_at]

    @property
    def query(self) -> str:
        """The text of the query."""
        return self.sql[self.query_at :]


class ComputedPlan(Struct, frozen=True, tag="computed"):
    """A plan that writes a query's rows, which are not computed yet.

    ``query``: a serialized ``spark.connect.Relation``, which runs once, in the session if there is
    one. ``template``: a serialized ``spark.connect.Plan`` with a placeholder for the rows
    (`haproc.engine.placeholder`). ``confs``: as in a `QueryWrite`.
    """

    query: bytes
    template: bytes
    session: SessionRef | None = None
    confs: Confs = ()

    @property
    def plan(self) -> bytes:
        """The plan with no rows in place of the placeholder: it shows what is done with them."""
        return with_rows(self.template, b"")


class SpooledRows(Struct, frozen=True, tag="spooled"):
    """Rows to append to a table, by column name; only the operation's origin has them so far.

    ``schema``: an Arrow IPC stream that has the columns, and no rows.
    """

    table: str
    schema: bytes


Write: TypeAlias = Statement | QueryWrite | ComputedPlan | SpooledRows
"""What an operation does: a statement, or one whose rows come in another record."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A plan with a placeholder, and the rows for it.

    The rows are one Arrow IPC stream (``rows``), or in the records at the offsets ``parts``.
    ``size_bytes``: their size in either case. ``observed``: the results of the query's observations
    (`haproc.engine.interface.Observed`), for the answer to the client.
    """

    plan: bytes
    rows: bytes = b""
    parts: tuple[int, ...] = ()
    size_bytes: int = 0
    observed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of the query of the operation at ``offset``; ``by``: the cluster that ran it.

    ``filling``: the plan that every cluster runs; it adds ``count`` rows. With a ``failure``
    instead, the operation is rejected.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    count: int = 0
    failure: ApplicationFailure | None = None
    filling: Filling | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the operation at ``offset``, as an Arrow IPC stream.

    It is the ``number``-th part that the cluster ``by`` made. ``created_ms``: Unix time by the
    writer's clock; by it a range of the log that has only parts has an age.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    number: int
    created_ms: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class Passed:
    """The cluster ``by`` could not run the query of the operation at ``offset``.

    ``failure``: why.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    failure: ApplicationFailure


Computed: TypeAlias = Rows | Part | Passed
