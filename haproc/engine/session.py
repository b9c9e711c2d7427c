"""A reader's session: settings and whatever its statements left in it, several queries at once.

If the server lost the session (it was restarted, or dropped it), a session that only ever had its
settings is made anew without anybody noticing. One in which a statement left more (a temporary
view, a variable, SET or USE) can't be: the call fails with SESSION_LOST, once for everything that
ran in it, and the next call finds a fresh session, into which its owner may run those statements
again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import assert_never

from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.engine import confs
from haproc.engine.configured import ConfiguredSession, Defaults
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, ResultStream, Settings
from haproc.engine.remote import RemoteSession, plan_of, sql_relation
from haproc.engine.statement import ArrowRows, SqlText, Statement
from haproc.engine.stream import QueryStream
from haproc.engine.table import columns_of, single_row

_LEAVE_NOTHING = frozenset(
    {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "LIST"}
)
_WHERE_AM_I = "SELECT current_catalog() AS catalog, current_schema() AS schema"


class SparkSession:
    """Implements Session."""

    def __init__(
        self, remote: RemoteSession, defaults: Defaults, small_statement_timeout_s: float
    ) -> None:
        self._remote = remote
        self._timeout_s = small_statement_timeout_s
        self._session = ConfiguredSession(remote, defaults, small_statement_timeout_s)
        self._settings: Settings | None = None
        self._holds_state = False
        self._lost_with_state: set[int] = set()
        self._changing = asyncio.Lock()
        self._running = 0

    @property
    def busy(self) -> bool:
        """Whether a statement runs in it; it must not be closed then."""
        return self._running > 0

    @property
    def epoch(self) -> int:
        """Rises whenever the server lost the session, with all that statements left in it."""
        return self._remote.epoch

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def query(self, statement: Statement, *, timeout_s: float) -> ResultStream:
        """Start a statement that only reads, or changes only this session's state."""
        if _leaves_something(statement):
            self._holds_state = True
            self._session.forget(session_is_new=False)
        plan = plan_of(statement)
        return QueryStream(
            self._remote,
            plan,
            timeout_s,
            begin=self._epoch,
            recover=self._recover,
            in_use=self._in_use,
        )

    async def configure(self, settings: Settings) -> None:
        """Make the session's settings exactly these (one round trip when they differ)."""
        async with self._changing:
            epoch = self._remote.epoch
            try:
                await self._session.ensure(settings, None)
            except EngineError as error:
                await self._renewed(error, epoch)
                await self._session.ensure(settings, None)
            self._settings = settings

    async def settings(self) -> Settings:
        """Read the session's catalog, schema, time zone and ANSI mode back from the cluster."""
        epoch = self._remote.epoch
        try:
            return await self._read_settings()
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return await self._read_settings()

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it (commands would run: not for them)."""
        epoch = self._remote.epoch
        try:
            return columns_of(await self._remote.schema(sql_relation(sql), self._timeout_s))
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return columns_of(await self._remote.schema(sql_relation(sql), self._timeout_s))

    async def cancel(self) -> None:
        """Interrupt what the session runs."""
        epoch = self._remote.epoch
        try:
            await self._remote.interrupt()
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise

    async def touch(self) -> None:
        """Keep the server from dropping the session; errors are ignored (the next call sees)."""
        try:
            await self._remote.get_confs([confs.TIME_ZONE])
        except EngineError:
            return

    async def aclose(self) -> None:
        """Release the session on the cluster; errors are ignored."""
        await self._remote.release()

    async def _read_settings(self) -> Settings:
        values, where = await asyncio.gather(
            self._remote.get_confs([confs.TIME_ZONE, confs.ANSI]),
            single_row(self._remote, _WHERE_AM_I, self._timeout_s),
        )
        return Settings(
            catalog=where["catalog"],
            schema=where["schema"],
            time_zone=values[confs.TIME_ZONE],
            ansi=values[confs.ANSI] == "true",
            confs=self._settings.confs if self._settings else (),
        )

    async def _epoch(self) -> int:
        """Return the session's epoch, once it is not being made anew."""
        async with self._changing:
            return self._remote.epoch

    async def _recover(self, error: EngineError, epoch: int) -> bool:
        """Make the session anew if the error says that it is lost; True if that was all."""
        async with self._changing:
            try:
                await self._renewed(error, epoch)
            except EngineError as unchanged:
                if unchanged is error:
                    return False
                raise
            if self._settings is not None:
                await self._session.ensure(self._settings, None)
        return True

    async def _renewed(self, error: EngineError, epoch: int) -> None:
        """Begin a fresh session, or raise: the error itself if it is another one."""
        first = epoch == self._remote.epoch
        if not self._remote.renew(error, epoch):
            raise error
        if first:
            self._session.forget(session_is_new=True)
            if self._holds_state:
                self._lost_with_state.add(epoch)
                self._holds_state = False
        if epoch in self._lost_with_state:
            raise EngineError(
                ErrorKind.AVAILABILITY,
                "The cluster no longer has this session: its temporary views, variables and "
                "settings are gone. Run the statements that made them again.",
                error_class="SESSION_LOST",
                sqlstate="08003",
            ) from error


def _leaves_something(statement: Statement) -> bool:
    """Tell whether a statement may change its session; when in doubt, it may."""
    match statement:
        case SqlText():
            return _text_leaves_something(statement.sql)
        case ArrowRows():
            return False
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
