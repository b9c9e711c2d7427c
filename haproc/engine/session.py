"""A session: settings and whatever its statements left in it, several queries at once.

If the server lost the session (it was restarted, or dropped it), it is made anew without anybody
noticing: with its settings, and with all that its owner's `Restore` puts back. That is the very way
in which it was made the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, assert_never

from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.engine import confs
from haproc.engine.configured import ConfiguredSession, Defaults
from haproc.engine.errors import EngineError
from haproc.engine.fresh import FreshSession
from haproc.engine.interface import Analyzed, Column, Relay, Restore, ResultStream, Settings
from haproc.engine.relay import SparkRelay
from haproc.engine.remote import RemoteSession, plan_of, sql_relation
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText, Statement
from haproc.engine.stream import QueryStream
from haproc.engine.table import columns_of, metadata_of, single_row

_LEAVE_NOTHING = frozenset(
    {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "LIST"}
)
_WHERE_AM_I = "SELECT current_catalog() AS catalog, current_schema() AS schema"


class SparkSession:
    """Implements Session."""

    def __init__(
        self,
        remote: RemoteSession,
        defaults: Defaults,
        small_statement_timeout_s: float,
        restore: Restore | None = None,
    ) -> None:
        self._remote = remote
        self._timeout_s = small_statement_timeout_s
        self._session = ConfiguredSession(remote, defaults, small_statement_timeout_s)
        self._settings: Settings | None = None
        self._restore = restore
        self._restored = restore is None
        self._begun = False
        self._changing = asyncio.Lock()
        self._running = 0
        self._relay = SparkRelay(
            remote,
            begin=self._begin,
            recover=self._recover,
            in_use=self._in_use,
            changing=self._is_changed,
        )

    @property
    def relay(self) -> Relay:
        """Clients' own calls in this session."""
        return self._relay

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
            self._is_changed()
        plan = plan_of(statement)
        return QueryStream(
            self._remote,
            plan,
            timeout_s,
            begin=self._begin,
            recover=self._recover,
            in_use=self._in_use,
        )

    def _is_changed(self) -> None:
        """Take in that a statement may change settings."""
        self._session.forget(session_is_new=False)

    async def ready(self) -> None:
        """Make the session, if it is not there, and restore it."""
        await self._begin()

    def outdate(self) -> None:
        """Have it made anew before the next statement: it may hold what its owner doesn't know."""
        if self._restore is not None:
            self._restored = False

    async def configure(self, settings: Settings) -> None:
        """Make the session's settings exactly these (one round trip when they differ)."""
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
        epoch = await self._begin()
        try:
            return await self._read_settings()
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return await self._read_settings()

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it (commands would run: not for them)."""
        return columns_of(await self._schema(sql_relation(sql)))

    async def schema(self, query: Statement) -> bytes:
        """Return a query's schema, a serialized ``spark.connect.DataType``, without running it."""
        return bytes((await self._schema(plan_of(query).root)).SerializeToString())

    async def _schema(self, relation: Any) -> Any:
        epoch = await self._begin()
        try:
            return await self._remote.schema(relation, self._timeout_s)
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return await self._remote.schema(relation, self._timeout_s)

    async def analyzed(self, query: SparkPlan) -> Analyzed:
        """Return what Spark makes of a plan whose root is a relation, without running it.

        Commands among its relations would run: not for them.
        """
        epoch, relation = await self._begin(), plan_of(query).root
        try:
            return await self._analyze(relation)
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return await self._analyze(relation)

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

    async def _analyze(self, relation: Any) -> Analyzed:
        text, schema = await asyncio.gather(
            self._remote.explained(relation, self._timeout_s),
            self._remote.schema(relation, self._timeout_s),
        )
        return Analyzed(text, tuple(columns_of(schema)), metadata_of(schema))

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

    async def _begin(self) -> int:
        """Return the session's epoch, once it holds what it has to."""
        async with self._changing:
            await self._restore_if_new()
            return self._remote.epoch

    async def _recover(self, error: EngineError, epoch: int) -> bool:
        """Make the session anew if the error says that it is lost; True if that was all."""
        async with self._changing:
            if not self._renewed(error, epoch):
                return False
            await self._restore_if_new()
            if self._restore is None and self._settings is not None:
                await self._session.ensure(self._settings, None)
        return True

    def _renewed(self, error: EngineError, epoch: int) -> bool:
        """Begin a fresh session if the error says that this epoch's is lost."""
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
        """Put back what the session held, into a Spark session that nothing was put into yet."""
        if self._restore is None or self._restored:
            return
        if self._begun:
            await self._leave()
        self._begun = True
        await self._restore(FreshSession(self._remote, self._session, self._timeout_s))
        self._restored = True

    async def _leave(self) -> None:
        """Go on in another Spark session; what still runs in this one comes to its end."""
        if not self.busy:
            await self._remote.release()
        self._remote.start_over()
        self._is_new()


def _leaves_something(statement: Statement) -> bool:
    """Tell whether a statement may change its session; when in doubt, it may."""
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
