"""A reader's session: its settings and its content, for several queries at the same time.

If the server lost the session (it was restarted, or dropped it), it is made anew without any error
for the user: with its settings, and the content that its owner's `Restore` puts back. It is made in
the same way at its first use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import assert_never

from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.engine import confs
from haproc.engine.asking import Asking, SparkRelay
from haproc.engine.configured import ConfiguredSession, Defaults, FreshSession
from haproc.engine.errors import SESSION_CHANGED, EngineError, ErrorKind, session_lost
from haproc.engine.interface import Observed, Queries, Relay, Restore, ResultStream, Settings
from haproc.engine.remote import RemoteSession, plan_of
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText, Statement
from haproc.engine.table import single_row
from haproc.engine.tasks import Planned

_LEAVE_NOTHING = frozenset(
    {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "LIST"}
)
_WHERE_AM_I = "SELECT current_catalog() AS catalog, current_schema() AS schema"


class SparkSession(Asking):
    """Implements Session over Spark Connect."""

    def __init__(
        self,
        remote: RemoteSession,
        defaults: Defaults,
        restore: Restore | None = None,
        pool: str = "",
        paths: Sequence[str] = (),
        closed: Callable[[SparkSession], None] = lambda _: None,
    ) -> None:
        """Prepare a session on ``remote``; ``closed`` is called with it when it is closed."""
        super().__init__(remote)
        self._session = ConfiguredSession(remote, defaults, pool, paths)
        self._closed = closed
        self._defaults = defaults
        self._settings: Settings | None = None
        self._restore = restore
        self._restored = restore is None
        self._begun = False
        self._changing = asyncio.Lock()
        self._running = 0
        self._relay = SparkRelay(remote, self, self._is_changed)

    @property
    def relay(self) -> Relay:
        """The object that makes clients' own Spark Connect calls in this session."""
        return self._relay

    @property
    def busy(self) -> bool:
        """True if a statement runs here, or is being stopped; then it must not be closed."""
        return self._running > 0 or self._remote.stopping > 0

    @property
    def epoch(self) -> int:
        """A number that rises whenever the server has lost the session and its content."""
        return self._remote.epoch

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the session open until the returned context manager is left."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        """Start a statement that changes nothing but this session; return its rows as they come."""
        if _leaves_something(statement):
            self._is_changed()
        return await super().query(
            statement, timeout_s=timeout_s, planned=planned, observed=observed
        )

    def _is_changed(self) -> None:
        """Treat the session's settings as unknown, because a statement may change them."""
        self._session.forget(session_is_new=False)

    async def ready(self) -> None:
        """Make the session, if it does not exist, and restore its content."""
        await self.begin()

    @property
    def stands(self) -> bool:
        """True if the Spark session exists with all its content, as far as this HAProc knows."""
        return self._restored

    def as_it_is(self) -> Queries:
        """Return the queries of the present Spark session; they fail if it must be recreated."""
        return _AsItIs(self, self._remote)

    def lost(self, error: EngineError, epoch: int) -> None:
        """Record an error of this epoch's session. It does not recreate the session.

        The epoch stays, so later calls of others name the lost session, too, and are refused.
        """
        if epoch == self._remote.epoch and session_lost(error.error_class):
            self.outdate()

    def outdate(self) -> None:
        """Have the session recreated before its next statement: its content may be unknown."""
        if self._restore is not None:
            self._restored = False

    async def configure(self, settings: Settings) -> None:
        """Give the session exactly these settings, in one round trip; none if it has them."""
        async with self._changing:
            await self._restore_if_new()
            epoch = self._remote.epoch
            try:
                await self._session.ensure(settings, None)
            except EngineError as error:
                if not self._renewed(error, epoch):
                    raise
                await self._restore_if_new()
                await self._session.ensure(settings, None)
            self._settings = settings

    async def settings(self) -> Settings:
        """Read the session's catalog, schema, time zone and ANSI mode back from the cluster."""
        epoch = await self.begin()
        try:
            return await self._read_settings()
        except EngineError as error:
            if not await self.recover(error, epoch):
                raise
            return await self._read_settings()

    async def untouched(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Return the values that settings have on this cluster as long as no client sets them."""
        return await self._defaults(names)

    async def cancel(self) -> None:
        """Interrupt all statements that run in the session."""
        epoch = self._remote.epoch
        try:
            await self._remote.interrupt()
        except EngineError as error:
            if not await self.recover(error, epoch):
                raise

    async def touch(self) -> None:
        """Make a call so that the server keeps the idle session; an error shows at the next one."""
        await self._remote.touch()

    async def aclose(self) -> None:
        """Release the session on the cluster; errors are ignored."""
        self._closed(self)
        await self._remote.release()

    async def _read_settings(self) -> Settings:
        values, where = await asyncio.gather(
            self._remote.get_confs([confs.TIME_ZONE, confs.ANSI]),
            single_row(self._remote, _WHERE_AM_I),
        )
        return Settings(
            catalog=where["catalog"],
            schema=where["schema"],
            time_zone=values[confs.TIME_ZONE],
            ansi=values[confs.ANSI] == "true",
            confs=self._settings.confs if self._settings else (),
        )

    async def begin(self) -> int:
        """Return the session's epoch, after restoring its content if the Spark session is new."""
        async with self._changing:
            await self._restore_if_new()
            return self._remote.epoch

    async def recover(self, error: EngineError, epoch: int) -> bool:
        """Recreate the session if the error shows that Spark lost it; False for another error."""
        async with self._changing:
            if not self._renewed(error, epoch):
                return False
            await self._restore_if_new()
            if self._restore is None and self._settings is not None:
                await self._session.ensure(self._settings, None)
        return True

    def _renewed(self, error: EngineError, epoch: int) -> bool:
        """Begin a fresh session if Spark lost this epoch's session; False for another error."""
        first = epoch == self._remote.epoch
        if not self._remote.renew(error, epoch):
            return False
        if first:
            self._is_new()
        return True

    def _is_new(self) -> None:
        self._session.forget(session_is_new=True)
        self._restored = self._restore is None
        self._begun = False

    async def _restore_if_new(self) -> None:
        """Put the session's content back, if this Spark session does not have it yet."""
        if self._restore is None or self._restored:
            return
        if self._begun:
            await self._leave()
        self._begun = True
        await self._restore(FreshSession(self._remote, self._session))
        self._restored = True

    async def _leave(self) -> None:
        """Go on in another Spark session; the statements that run now end in the old one."""
        if not self.busy:
            await self._remote.release()
        self._remote.start_over()
        self._is_new()


class _AsItIs(Asking):
    """Runs queries in the present Spark session; raises EngineError if it must be recreated."""

    def __init__(self, session: SparkSession, remote: RemoteSession) -> None:
        super().__init__(remote)
        self._session = session
        self._epoch = session.epoch

    async def begin(self) -> int:
        if not self._session.stands or self._session.epoch != self._epoch:
            raise EngineError(
                ErrorKind.AVAILABILITY,
                "The session was lost meanwhile",
                error_class=SESSION_CHANGED,
            )
        return self._epoch

    async def recover(self, error: EngineError, epoch: int) -> bool:
        self._session.lost(error, epoch)
        return False

    def in_use(self) -> AbstractContextManager[None]:
        """Keep the whole session open until the returned context manager is left."""
        return self._session.in_use()


def _leaves_something(statement: Statement) -> bool:
    """True if a statement may change its session, or if that is not known."""
    match statement:
        case SqlText():
            return _text_leaves_something(statement.sql)
        case ArrowRows():
            return False
        case SparkPlan():
            return bool(plan_of(statement).HasField("command"))
        case _:
            assert_never(statement)


def _text_leaves_something(sql: str) -> bool:
    try:
        for token in tokenize(sql):
            if token.kind is TokenKind.WORD:
                return token.upper not in _LEAVE_NOTHING
            if not token.is_symbol("("):
                return True
    except LexicalError:
        return False  # the server will refuse it
    return False
