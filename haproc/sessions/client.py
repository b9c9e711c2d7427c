"""One client's session on the HAProc that owns it, and the effects of statements on it."""

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
    """Return the effect on the session of a statement that ran in it; raises EngineError.

    ``sql`` makes or drops a temporary view, function or variable, or sets variables.
    """
    first = next((token.upper for token in tokenize(sql)), "")
    dropped = dropped_variable(sql)
    if first in _OF_VARIABLES or dropped:
        return await _variables(session, sql, dropped, timeout_s)
    made = as_made(sql)
    return SqlEntry(made, await _with_columns(session, effect_of_sql(made)))


async def left_by_plan(session: ClientSession, plan: bytes) -> PlanEntry:
    """Return the effect on the session of a plan that ran in it; raises EngineError."""
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
    """Return all variables of the session as they are now."""
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
    """Return the session's variables with their defaults."""
    found: dict[str, str] = {}
    for each in session.entries:
        if isinstance(each.entry, VariablesEntry):
            found = {variable.name: variable.default for variable in each.entry.variables}
    return found


async def _values(
    session: ClientSession, defaults: Mapping[str, str], timeout_s: float
) -> list[Variable]:
    """Return the present values of these variables; ``defaults``: each variable's default."""
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
"""The most ids in one entry of successive changes of settings. Late copies come within seconds."""


@dataclass(frozen=True, slots=True)
class BeginningIds:
    """The request ids of the statements that a session begins with; clients' ids have no slash."""

    digest: str

    @classmethod
    def of(cls, statements: Sequence[str]) -> BeginningIds:
        """Return the ids of these statements, in this order."""
        return cls(hashlib.sha256(json.dumps([*statements]).encode()).hexdigest()[:16])

    def of_number(self, number: int) -> str:
        """Return the id of one of the statements."""
        return f"begin/{self.digest}/{number}"

    def number(self, request_id: str) -> int | None:
        """Return the number of the statement with this id; None if no statement has it."""
        if request_id.startswith(f"begin/{self.digest}/"):
            return int(request_id.rpartition("/")[2])
        return None


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """Spark's answer to a question about settings.

    ``epoch``: the `Session.epoch` when the question was sent. ``still`` returns True if since then
    no statement has begun to change the session.
    """

    response: bytes
    epoch: int
    still: Callable[[], bool]


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client's session on this HAProc, as long as this HAProc is its owner.

    ``server_id``: the id that its client takes for the server's own.
    """

    key: Key
    server_id: str
    spark: Session
    owner: Adoption
    known: frozenset[str]
    state: StateEntry
    entries: list[Numbered] = field(default_factory=list)
    holds_temporaries: bool = False
    """True if a temporary object was made: names may mean something else here."""
    handles: set[str] = field(default_factory=set)
    """Objects that only this Spark session has: checkpoints and models, by their ids."""
    begun: str = ""
    """As in `StoredSession`: it differs in another session of the same id."""
    known_settings: dict[bytes, KnownSettings] = field(default_factory=dict)
    """Answers about settings, by the question: a serialized ConfigRequest."""
    used_at: float = 0.0
    used_hour: int | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a statement changes the session and its entry is recorded: entries are in the
    order in which they took effect."""
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while settings change in Spark, until ``settings`` are the same."""
    changes: int = 0
    """The number of statements that have begun to change it, with any outcome; never falls."""
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    superseded: list[Numbered] = field(default_factory=list)
    """Entries that later ones replace, and that are not deleted yet."""

    @property
    def id(self) -> str:
        """The id that its client chose."""
        return self.key.id

    @property
    def user(self) -> str:
        """The user of the session."""
        return self.key.user

    @property
    def settings(self) -> Settings:
        """The settings of its statements, and of its writes on every cluster."""
        return self.state.settings

    @property
    def options(self) -> Options:
        """Its settings below ``haproc.``, which Spark never sees."""
        return self.state.options

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its session variables as they were last read."""
        found = [e.entry for e in self.entries if isinstance(e.entry, VariablesEntry)]
        return found[-1].variables if found else ()

    @property
    def next_ordinal(self) -> int:
        """The number of its journal's entries: existing ones have lower ordinals."""
        return self.entries[-1].ordinal + 1 if self.entries else 0

    @property
    def journal_bytes(self) -> int:
        """The bytes of its journal in the store, without files."""
        return sum(each.size for each in self.entries)

    @property
    def files_bytes(self) -> int:
        """The bytes of its files."""
        entries = [each.entry for each in self.entries]
        return sum(each.size for each in entries if isinstance(each, ArtifactEntry))

    async def setting(self, run: Callable[[], Awaitable[T]]) -> tuple[T, Settings]:
        """Run a change of settings with `leaving`; return its result and the settings after it."""
        return await self.leaving(run, self.spark.settings)

    async def leaving(
        self, run: Callable[[], Awaitable[T]], look: Callable[[], Awaitable[L]]
    ) -> tuple[T, L]:
        """Run a change of the session; return its result, and the result of ``look`` after it.

        If Spark's session was recreated in between, the change is lost. So it runs again, once: the
        first statement after a restart of Spark meets this. Raises EngineError.
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
        """Return the state after an entry of settings; raises EngineError.

        Own settings are left out if their values are those of any other session.
        """
        now = after(self.state, entry, defaults)
        confs = now.settings.confs
        if names := [key for key, _ in confs if is_own(key)]:
            untouched = await self.spark.untouched(names)
            confs = tuple(pair for pair in confs if pair not in untouched.items())
        return StateEntry(replace(now.settings, confs=confs), now.options)

    def has_recorded(self, request_id: str) -> bool:
        """True if this request has changed the session already: its client lacks only the answer.

        A late copy of it must not undo later settings. Of successive changes of settings, the last
        `REQUESTS_REMEMBERED` are known.
        """
        return bool(request_id) and any(request_id in each.request_ids for each in self.entries)

    def begun_with(self, ids: BeginningIds) -> int | None:
        """Return the number of its first statements that have run.

        None: another request has changed the session, so all of these have run.
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
        """True if the last step of its journal has room for another request id."""
        return bool(self.entries) and isinstance(self.entries[-1].entry, StateEntry)

    def unchanged(self, own: int = 0) -> Callable[[], bool]:
        """Return a function that returns True until a statement begins to change the session.

        ``own``: the number of changes by the caller, which do not count.

        Entries would not show it: Spark runs a statement before it is recorded, and keeps its
        effect even if the record is refused, or another HAProc goes on with the session.
        """
        now = None if self.changing.locked() else self.changes
        return lambda: now is not None and self.changes == now + own

    def took(self, numbered: Numbered, gone: Sequence[Numbered]) -> None:
        """Note an entry that counts, and that the entries ``gone`` are replaced by it."""
        self.superseded += gone
        self.entries = [each for each in self.entries if each not in gone]
        self.entries.append(numbered)
        if isinstance(numbered.entry, StateEntry):
            self.state = numbered.entry
        self.holds_temporaries |= holds_temporaries((numbered.entry,))

    def check_handles(self, used: frozenset[str]) -> None:
        """Raise RequestError if a statement uses an object of a lost Spark session."""
        if lost := sorted(used - self.handles):
            raise RequestError(
                FailureKind.APPLICATION,
                "the statement uses a local checkpoint or a fitted model that was in the memory of "
                f"a Spark which does not serve this session any more ({', '.join(lost)})",
                error_class=ErrorClass.HANDLE_LOST,
                hint="run localCheckpoint() or fit() again, and what was made from it",
            )


def state_of(entries: Iterable[Kept], defaults: Settings) -> StateEntry:
    """Return the state of a session after these entries."""
    states = [each for each in entries if isinstance(each, StateEntry)]
    return states[-1] if states else StateEntry(defaults)
