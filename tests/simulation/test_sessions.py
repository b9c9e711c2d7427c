"""Sessions are adopted under every kind of fault, and broken rules are found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import pytest

from dmq.key_value import Kept
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Fresh
from haproc.engine.statement import SqlText, Statement
from haproc.sessions import adoption, client, durable, effects, sessions
from haproc.sessions.client import ClientSession
from haproc.sessions.durable import Adoption, Key, Numbered, SessionStore, StoredSession
from haproc.sessions.journal import Effect, SqlEntry
from haproc.sessions.journal import Kept as KeptEntry
from haproc.sessions.sessions import Sessions
from tests.simulation.session_ring import HAProc
from tests.simulation.session_spark import Held, Interpreter, Table
from tests.simulation.sessions import Client, simulate
from tests.simulation.violations import Problem, Violation, found_in
from tests.unit.session_rig import DEFAULTS

SEEDS = 20
BROKEN_SEEDS = 200


def runs(first: int = 0) -> Iterator[Sequence[Problem]]:
    for seed in range(first, first + BROKEN_SEEDS):
        yield simulate(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_session_keeps_its_acknowledged_content_under_every_owner(seed: int) -> None:
    assert [str(problem) for problem in simulate(seed)] == []


def test_session_run_of_one_seed_is_the_same_every_time() -> None:
    assert simulate(7) == simulate(7)


def test_adoption_without_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SessionStore.adopt

    async def adopt(
        self: SessionStore, key: Key, found: StoredSession | None, **options: Any
    ) -> StoredSession | None:
        return found if found is not None else await real(self, key, found, **options)

    monkeypatch.setattr(SessionStore, "adopt", adopt)
    found_in(runs(), Violation.LOST, [Violation.DOUBLED, Violation.STALE, Violation.ANOTHER])


def test_counted_entry_of_a_replaced_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def until(chained: list[tuple[Adoption, int]]) -> dict[str, tuple[int, int | None]]:
        return {each.name: (place, None) for place, (each, _) in enumerate(chained)}

    monkeypatch.setattr(durable, "_counts_until", until)
    beside = [Violation.REJECTED, Violation.DOUBLED, Violation.ANOTHER]
    found_in(runs(), Violation.LOST, beside)


Ids: TypeAlias = tuple[str, ...]


def test_answer_before_the_journal_entry_is_durable_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SessionStore.append
    tasks = set()

    async def append(
        self: SessionStore,
        key: Key,
        owner: Adoption,
        ordinal: int,
        entry: KeptEntry,
        ids: Ids = (),
        replaces: int | None = None,
    ) -> durable.Numbered:
        task = asyncio.create_task(real(self, key, owner, ordinal, entry, ids, replaces))
        task.add_done_callback(lambda each: each.cancelled() or each.exception())
        tasks.add(task)
        return durable.Numbered(ordinal, owner.name, entry, 1, ids, replaces)

    monkeypatch.setattr(SessionStore, "append", append)
    found_in(runs(), Violation.LOST, [Violation.REJECTED])


def test_skipped_look_for_adoptions_after_a_journal_entry_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Sessions._record

    async def record(self: Sessions, session: ClientSession, *given: Any) -> None:
        store = self._store

        class Blind:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def known(self, key: Key) -> frozenset[str]:
                return session.known

        self._store = Blind()  # type: ignore[assignment]
        try:
            await real(self, session, *given)
        finally:
            self._store = store

    monkeypatch.setattr(Sessions, "_record", record)
    found_in(runs(), Violation.LOST)


def test_unchecked_session_ownership_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def still_mine(self: Sessions, session: ClientSession) -> bool:
        return True

    monkeypatch.setattr(Sessions, "_still_mine", still_mine)
    found_in(runs(), Violation.LOST, [Violation.STALE])


def test_skipped_wait_for_the_end_of_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def caught_up(self: HAProc) -> None:
        return

    monkeypatch.setattr(HAProc, "_caught_up", caught_up)
    found_in(runs(), Violation.STALE)


def test_write_answer_without_a_look_at_its_session_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(self: Client, haproc: HAProc) -> None:
        return

    monkeypatch.setattr(Client, "look_again", nothing)
    found_in(runs(), Violation.STALE)


def test_second_adoption_that_replaces_the_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_wins(adoptions: Mapping[str, Kept]) -> list[tuple[Adoption, int]]:
        by_number: dict[int, tuple[Adoption, int]] = {}
        for found in sorted(adoptions.values(), key=lambda kept: kept.revision):
            adoption = durable.RECORDS.from_bytes(found.value)
            assert isinstance(adoption, Adoption)
            by_number[adoption.number] = adoption, found.revision
        return [by_number[number] for number in sorted(by_number)]

    monkeypatch.setattr(durable, "_chain", last_wins)
    beside = [Violation.REJECTED, Violation.STALE, Violation.ANOTHER]
    found_in(runs(), Violation.LOST, beside)


def test_ignored_session_step_of_unknown_outcome_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def changing(self: Sessions, session: ClientSession) -> AsyncIterator[None]:
        async with session.changing:
            yield

    monkeypatch.setattr(Sessions, "changing", changing)
    found_in(runs(270), Violation.ANOTHER, [Violation.DOUBLED, Violation.REJECTED, Violation.LOST])


# -- the journal keeps effects ---------------------------------------------------------------


def test_journal_with_the_command_instead_of_the_value_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def command(session: ClientSession, sql: str, *_: object) -> SqlEntry:
        return SqlEntry(sql)

    monkeypatch.setattr(client, "_variables", command)
    found_in(runs(), Violation.ANOTHER, [Violation.GONE])


def test_forgotten_drop_in_the_journal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(numbered: Numbered, left: Sequence[KeptEntry]) -> bool:
        return effects.removes(numbered.entry)

    monkeypatch.setattr(effects, "_is_needless", forgets)
    found_in(runs(45), Violation.ANOTHER)


def test_removed_journal_entry_that_others_rest_on_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def any_older(entries: Sequence[Numbered], entry: KeptEntry) -> list[Numbered]:
        return [entries[at] for at in effects._same(entries, entry)]

    monkeypatch.setattr(sessions, "superseded", any_older)
    found_in(runs(), Violation.ANOTHER)


def test_broken_step_that_fails_the_whole_adoption_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def break_all(*_: object) -> None:
        raise EngineError(ErrorKind.APPLICATION, "not found")

    monkeypatch.setattr(adoption, "_break_view", break_all)
    found_in(runs(), Violation.GONE)


def test_broken_view_that_frees_its_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def leave(*_: object) -> None:
        return

    monkeypatch.setattr(adoption, "_break_view", leave)
    found_in(runs(), Violation.ANOTHER)


def test_rebuilt_view_with_the_current_columns_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def leave(*_: object) -> None:
        return

    monkeypatch.setattr(adoption, "_give_columns", leave)
    found_in(runs(), Violation.ANOTHER)


async def test_rebuilt_view_with_fixed_columns_shows_later_changes_below_it() -> None:
    """Few simulated runs change a name below such a view before they build the session again."""
    live, made = Held(DEFAULTS), Held(DEFAULTS)
    view = "CREATE OR REPLACE TEMPORARY VIEW b AS SELECT * FROM a WHERE id > x"
    declare = "DECLARE OR REPLACE VARIABLE x BIGINT DEFAULT 1"
    later = "SET VAR x = 9"

    class Making:
        async def configure(self, settings: object) -> None:
            pass

        async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
            Interpreter(made, Held(DEFAULTS), grown, lambda: 0).run(statement)

        async def columns(self, sql: str) -> list[Column]:
            shown = made.analysed("b", grown)
            assert shown is not None
            return [Column(each, "bigint") for each in shown[0]]

    tables, grown = {"a": Table(("id",), 1)}, {"a": Table(("id", "more"), 2)}
    for text in (declare, view):
        Interpreter(live, Held(DEFAULTS), tables, lambda: 0).run(SqlText(text))
    Interpreter(made, Held(DEFAULTS), grown, lambda: 0).run(SqlText(declare))
    effect = Effect("view b", False, DEFAULTS, (("id", "bigint"),))
    await adoption._make(cast(Fresh, Making()), SqlEntry(view, effect), 1.0)
    for held in (live, made):
        Interpreter(held, Held(DEFAULTS), grown, lambda: 0).run(SqlText(later))
        assert held.shown("b", grown) == (("id",), (9, 2))


def test_look_at_a_session_that_was_rebuilt_meanwhile_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def once(
        self: ClientSession,
        run: Callable[[], Awaitable[Any]],
        look: Callable[[], Awaitable[Any]],
    ) -> tuple[Any, Any]:
        return await run(), await look()

    monkeypatch.setattr(ClientSession, "leaving", once)
    found_in(runs(), Violation.ANOTHER)
