"""One client's session on the HAProc that owns it, and what statements leave in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa

from haproc.classify.session_settings import is_own
from haproc.classify.tokens import tokenize
from haproc.engine.arrow import stream_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.pin.sqltypes import quote_name
from haproc.sessions.durable import Adoption, Key, Numbered
from haproc.sessions.effects import (
    as_made,
    declared,
    dropped_variable,
    effect_of_plan,
    effect_of_sql,
)
from haproc.sessions.journal import (
    ArtifactEntry,
    ConfEntry,
    Effect,
    Kept,
    Options,
    PlanEntry,
    SettingsEntry,
    SqlEntry,
    StateEntry,
    Variable,
    VariablesEntry,
    after,
    holds_temporaries,
)

# The effect of a statement on its session, read for the journal: columns and values.


_OF_VARIABLES: Final = ("DECLARE", "SET")


async def left_by(session: ClientSession, sql: str, timeout_s: float) -> SqlEntry | VariablesEntry:
    """Return the journal entry for a statement that has run in the session; raises EngineError.

    ``sql``: the statement, which made or dropped a temporary view, function or variable, or set
    variables.
    """
    first = next((token.upper for token in tokenize(sql)), "")
    dropped = dropped_variable(sql)
    if first in _OF_VARIABLES or dropped:
        return await _variables(session, sql, dropped, timeout_s)
    made = as_made(sql)
    return SqlEntry(made, await _with_columns(session, effect_of_sql(made)))


async def left_by_plan(session: ClientSession, plan: bytes) -> PlanEntry:
    """Return the journal entry for a plan that has run in the session; raises EngineError."""
    return PlanEntry(plan, await _with_columns(session, effect_of_plan(plan)))


async def _with_columns(session: ClientSession, effect: Effect) -> Effect:
    kind, _, name = effect.name.partition(" ")
    if kind != "view" or effect.removes:
        return effect
    try:
        columns = await session.spark.columns(f"SELECT * FROM {quote_name(name)}")
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:  # the view exists all the same
            return effect
        raise
    return replace(effect, columns=tuple((each.name, each.type_text) for each in columns))


async def _variables(
    session: ClientSession, sql: str, dropped: str, timeout_s: float
) -> VariablesEntry:
    """Return an entry with all variables of the session and their present values.

    ``dropped``: the variable that the statement ``sql`` has dropped; empty if none.
    """
    new, default = declared(sql)
    defaults = _defaults(session)
    defaults |= dict.fromkeys(new, default)
    defaults.pop(dropped, None)
    if not defaults:
        return VariablesEntry(())
    try:
        return VariablesEntry(tuple(await _values(session, defaults, timeout_s)))
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
    # One of them could not be recreated, and stays in the journal as it was.
    was = {each.name: each for each in session.variables if each.name not in new}
    found = []
    for name, text in defaults.items():
        try:
            found += await _values(session, {name: text}, timeout_s)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION or name not in was:
                raise
            found.append(was[name])
    return VariablesEntry(tuple(found))


def _defaults(session: ClientSession) -> dict[str, str]:
    """Return the defaults of the session's variables, by name, from the journal."""
    found: dict[str, str] = {}
    for each in session.entries:
        if isinstance(each.entry, VariablesEntry):
            found = {variable.name: variable.default for variable in each.entry.variables}
    return found


async def _values(
    session: ClientSession, defaults: Mapping[str, str], timeout_s: float
) -> list[Variable]:
    """Read the present values of variables; ``defaults``: their names with their defaults."""
    query = "SELECT " + ", ".join(f"session.{quote_name(name)}" for name in defaults)
    columns = await session.spark.columns(query)
    stream = await session.spark.query(SqlText(query), timeout_s=timeout_s)
    chunks = [chunk.data async for chunk in stream]
    [row] = [batch for chunk in chunks for batch in pa.ipc.open_stream(chunk) if batch.num_rows]
    whole = pa.Table.from_batches([row])
    return [
        Variable(name, column.type_text, stream_of(whole.select([at]).rename_columns(["v"])), text)
        for at, ((name, text), column) in enumerate(zip(defaults.items(), columns, strict=True))
    ]


T = TypeVar("T")
L = TypeVar("L")

LEAVING_ATTEMPTS_MAX: Final = 2
REQUESTS_REMEMBERED: Final = 64
"""The most request ids in one entry of successive changes of settings; late copies of a request
come within seconds."""


@dataclass(frozen=True, slots=True)
class BeginningIds:
    """Makes the request ids of the statements with which a session begins.

    They contain a slash, so no client's id equals one.
    """

    digest: str

    @classmethod
    def of(cls, statements: Sequence[str]) -> BeginningIds:
        """Return the ids for these statements, in this order."""
        return cls(hashlib.sha256(json.dumps([*statements]).encode()).hexdigest()[:16])

    def of_number(self, number: int) -> str:
        """Return the id of the statement with this number; the first one has 0."""
        return f"begin/{self.digest}/{number}"

    def number(self, request_id: str) -> int | None:
        """Return the number of the statement that has this request id; None if none has."""
        if request_id.startswith(f"begin/{self.digest}/"):
            return int(request_id.rpartition("/")[2])
        return None


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """An answer of Spark about settings that is kept.

    ``epoch``: the `Session.epoch` when Spark was asked. ``still`` returns True if no statement has
    begun to change the session since then.
    """

    response: bytes
    epoch: int
    still: Callable[[], bool]


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client's session on this HAProc, as long as this HAProc owns it.

    ``server_id``: shown to Spark Connect clients as the server's own id of the session. ``known``:
    the control keys in the store from which this HAProc knows that it is the owner.
    """

    key: Key
    server_id: str
    spark: Session
    owner: Adoption
    known: frozenset[str]
    state: StateEntry
    entries: list[Numbered] = field(default_factory=list)
    holds_temporaries: bool = False
    """True if a temporary object was made in the session, so that a name may mean that one."""
    handles: set[str] = field(default_factory=set)
    """The ids of objects that only this Spark session has: checkpoints and models."""
    begun: str = ""
    """As in `StoredSession`: another session of the same id has another value."""
    known_settings: dict[bytes, KnownSettings] = field(default_factory=dict)
    """Kept answers of Spark about settings, by the question: a serialized ConfigRequest."""
    used_at: float = 0.0
    used_hour: int | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a statement changes the session, until its entry is recorded: so the entries are
    in the order in which they took effect."""
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while settings change in Spark, until ``settings`` show the change."""
    changes: int = 0
    """How many statements have begun to change the session, with any outcome; it never falls."""
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    superseded: list[Numbered] = field(default_factory=list)
    """Entries that later entries replace, and that are still in the store."""

    @property
    def id(self) -> str:
        """The session's id, as its client chose it."""
        return self.key.id

    @property
    def user(self) -> str:
        """The user of the session."""
        return self.key.user

    @property
    def settings(self) -> Settings:
        """The settings of its statements here, and of its writes on every cluster."""
        return self.state.settings

    @property
    def options(self) -> Options:
        """The client's settings whose names begin with ``haproc.``; Spark never gets them."""
        return self.state.options

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The session variables, with the values that the newest entry of the journal has."""
        found = [e.entry for e in self.entries if isinstance(e.entry, VariablesEntry)]
        return found[-1].variables if found else ()

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next journal entry: existing ones have lower ordinals."""
        return self.entries[-1].ordinal + 1 if self.entries else 0

    @property
    def journal_bytes(self) -> int:
        """The bytes of its journal in the store, without the files."""
        return sum(each.size for each in self.entries)

    @property
    def files_bytes(self) -> int:
        """The bytes of its files in the store."""
        entries = [each.entry for each in self.entries]
        return sum(each.size for each in entries if isinstance(each, ArtifactEntry))

    async def setting(self, run: Callable[[], Awaitable[T]]) -> tuple[T, Settings]:
        """Run a change of settings as `leaving` does; return its result and the new settings."""
        return await self.leaving(run, self.spark.settings)

    async def leaving(
        self, run: Callable[[], Awaitable[T]], look: Callable[[], Awaitable[L]]
    ) -> tuple[T, L]:
        """Call ``run``, which changes the session, then ``look``; return both results.

        If Spark's session was recreated in between, the change is lost. So both are called again,
        once: this happens at the first statement after a restart of Spark. Raises EngineError.
        """
        for _ in range(LEAVING_ATTEMPTS_MAX):
            await self.spark.ready()
            epoch = self.spark.epoch
            given = await run()
            try:
                found = await look()
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION or self.spark.epoch == epoch:
                    self.spark.outdate()  # it has content that no entry will contain
                    raise
            else:
                if self.spark.epoch == epoch:
                    return given, found
        raise EngineError(ErrorKind.AVAILABILITY, "Spark lost the session while it was changed")

    async def state_after(self, entry: SettingsEntry | ConfEntry, defaults: Settings) -> StateEntry:
        """Return the session's state after a change of settings; raises EngineError.

        Settings of the session's own are left out if any other session has the same values.
        """
        now = after(self.state, entry, defaults)
        confs = now.settings.confs
        if names := [key for key, _ in confs if is_own(key)]:
            untouched = await self.spark.untouched(names)
            confs = tuple(pair for pair in confs if pair not in untouched.items())
        return StateEntry(replace(now.settings, confs=confs), now.options)

    def has_recorded(self, request_id: str) -> bool:
        """True if this request has changed the session already, and only its answer was lost.

        So a late copy of the request does not undo later settings. Of successive changes of
        settings, only the last `REQUESTS_REMEMBERED` are known.
        """
        return bool(request_id) and any(request_id in each.request_ids for each in self.entries)

    def begun_with(self, ids: BeginningIds) -> int | None:
        """Return how many of the statements with which the session begins have run.

        None if another request has changed the session: then all of them have run.
        """
        begun = 0
        for each in self.entries:
            for request_id in each.request_ids or ("",):
                number = ids.number(request_id)
                if number is None:
                    return None
                begun = number + 1
        return begun

    @property
    def ends_in_settings(self) -> bool:
        """True if the newest journal entry has settings; request ids can be added to such a one."""
        return bool(self.entries) and isinstance(self.entries[-1].entry, StateEntry)

    def unchanged(self, own: int = 0) -> Callable[[], bool]:
        """Return a function that returns True until a statement begins to change the session.

        ``own``: how many changes the caller will make itself; they do not count.

        The journal would not show this: Spark runs a statement before it is recorded, and keeps its
        effect even if recording fails, or another HAProc takes the session over.
        """
        now = None if self.changing.locked() else self.changes
        return lambda: now is not None and self.changes == now + own

    def took(self, numbered: Numbered, gone: Sequence[Numbered]) -> None:
        """Add an entry that the store has to this copy; ``gone``: the entries that it replaces."""
        self.superseded += gone
        self.entries = [each for each in self.entries if each not in gone]
        self.entries.append(numbered)
        if isinstance(numbered.entry, StateEntry):
            self.state = numbered.entry
        self.holds_temporaries |= holds_temporaries((numbered.entry,))

    def check_handles(self, used: frozenset[str]) -> None:
        """Raise RequestError if an object in ``used`` was lost with its Spark session."""
        if lost := sorted(used - self.handles):
            raise RequestError(
                FailureKind.APPLICATION,
                "the statement uses a local checkpoint or a fitted model that was in the memory of "
                f"a Spark which does not serve this session any more ({', '.join(lost)})",
                error_class=ErrorClass.HANDLE_LOST,
                hint="run localCheckpoint() or fit() again, and what was made from it",
            )


def state_of(entries: Iterable[Kept], defaults: Settings) -> StateEntry:
    """Return the settings and options of a session with these journal entries."""
    states = [each for each in entries if isinstance(each, StateEntry)]
    return states[-1] if states else StateEntry(defaults)
