"""Writes whose rows are computed at their place in the order, and failures, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from haproc.engine.errors import EngineError
from haproc.engine.placeholder import with_rows
from haproc.engine.statement import Statement
from haproc.spark_error import NO_DETAILS, Details, cut

# An application error as records of the log hold it.


MESSAGE_CHARACTERS_MAX: Final = 2048
"""As much as Spark puts into a status; what quotes a statement may be as long as that."""


@dataclass(frozen=True, slots=True)
class ApplicationFailure:
    """An application error: the deterministic outcome of an operation on a cluster.

    Its message is cut to what is worth to be remembered.
    """

    error_class: str
    sqlstate: str
    message: str
    details: Details = NO_DETAILS

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", cut(self.message, MESSAGE_CHARACTERS_MAX))

    @classmethod
    def of(cls, error: EngineError) -> ApplicationFailure:
        """Return a cluster's error as a record holds it."""
        return cls(error.error_class, error.sqlstate, error.message, error.details)

    def same_as(self, other: ApplicationFailure) -> bool:
        """Whether two clusters met the same error (messages may name files or hosts)."""
        return (self.error_class, self.sqlstate) == (other.error_class, other.sqlstate)


# Writes whose rows are computed at their place in the order.
#
# A write that feeds a query's rows into a table, and would not feed the same ones everywhere, is
# in the log as it stands. Its rows come when its turn has come: one cluster runs the query,
# everything before it applied and nothing after it, and puts what it gave into the log:
#
# - ``rows``: what is to be run everywhere, or the error that the query came to. The first one in
#   the log counts for all, for the cluster that computed it, too: a plan with a placeholder
#   (`haproc.engine.placeholder`) and the rows for it.
# - ``part``: rows for which one record has no room. Parts stand before the ``rows`` that names
#   them; what none names, or not the first one, means nothing.
# - ``passed``: a cluster could not run the query, for reasons of its own: another one is to.
#
# All of them stand behind their operation, so as long as that is needed, they are.
#
# ``epoch`` is the offset of the writer's claim, see `haproc.replicate.log_state.members`. What a
# replaced process says is void.


Confs: TypeAlias = tuple[tuple[str, str], ...]
"""Settings by name, sorted."""


@dataclass(frozen=True, slots=True)
class SessionRef:
    """A client's session as it was: with the entries of its journal whose ordinals are lower.

    ``begun`` names as which it began: one that is begun afresh under its id is another.
    """

    user: str
    session_id: str
    entries: int
    begun: str


class QueryWrite(Struct, frozen=True, tag="query"):
    """A statement whose rows are yet to be computed; its query begins at ``query_at``.

    ``of_session``: the query rests on the session of the client that sent it (temporary views,
    variables), on ``session``; without that it can run only where that session is.
    ``confs``: settings of its client's session alone, under which the query runs besides the
    operation's.
    """

    sql: str
    query_at: int
    of_session: bool = False
    session: SessionRef | None = None
    confs: Confs = ()

    @property
    def head(self) -> str:
        """The text before the query."""
        return self.sql[: self.query_at]

    @property
    def query(self) -> str:
        """The query."""
        return self.sql[self.query_at :]


class ComputedPlan(Struct, frozen=True, tag="computed"):
    """A plan that writes, whose rows are yet to be computed.

    ``query``: a serialized ``spark.connect.Relation``, which is run once, in the session if there
    is one. ``template``: a serialized ``spark.connect.Plan`` with a hole
    (`haproc.engine.placeholder`). ``confs``: as of a `QueryWrite`.
    """

    query: bytes
    template: bytes
    session: SessionRef | None = None
    confs: Confs = ()

    @property
    def plan(self) -> bytes:
        """What it does with its rows: the plan as it would be without any."""
        return with_rows(self.template, b"")


class SpooledRows(Struct, frozen=True, tag="spooled"):
    """Rows to append to a table by column name, which only the operation's origin has so far.

    ``schema``: an Arrow IPC stream without rows, of the columns that the rows have.
    """

    table: str
    schema: bytes


Write: TypeAlias = Statement | QueryWrite | ComputedPlan | SpooledRows
"""What an operation does: a statement, or one whose rows another record has."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A plan with a hole, and the rows for it: one Arrow IPC stream, or the offsets of its parts.

    ``size_bytes``: what the rows take, in parts or not. ``observed``: what observations of the
    query found (`haproc.engine.interface.Observed`), for whoever tells the client.
    """

    plan: bytes
    rows: bytes = b""
    parts: tuple[int, ...] = ()
    size_bytes: int = 0
    observed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """What the query of the operation at ``offset`` came to, on the cluster ``by``.

    ``filling`` is what to run everywhere, which adds ``count`` rows; with a ``failure`` the
    operation is rejected.
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
    """Rows of the operation at ``offset``, an Arrow IPC stream; the ``number``-th of ``by``'s.

    ``created_ms`` is Unix time by its writer's clock: how old a stretch of the log is where it
    holds nothing but parts.
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
    """The cluster ``by`` could not run the query of the operation at ``offset``."""

    offset: int
    operation_id: str
    by: str
    epoch: int
    failure: ApplicationFailure


Computed: TypeAlias = Rows | Part | Passed
