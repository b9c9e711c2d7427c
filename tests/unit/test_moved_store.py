"""Tests of the jobs and sessions of a ring whose log was moved to another backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

from dmq import MemoryKeyValueStore, MemoryLog, MemoryStore, Record
from dmq.moving import export_log, import_log
from haproc.engine.interface import Settings
from haproc.jobs.book import Book
from haproc.jobs.keeping import RingView, steps
from haproc.jobs.model import BatchState, Ending, Outcome
from haproc.sessions.durable import RECORDS, Adoption, Key, Written, stored_session
from haproc.sessions.journal import StateEntry
from tests.unit.test_jobs_history import SUBMISSION, attempt


async def moved(store: MemoryKeyValueStore, file: Path) -> MemoryKeyValueStore:
    """Move a store, with a log of one record; return the new one."""
    log, store_ = MemoryLog(MemoryStore(identity="x")), MemoryKeyValueStore()
    await log.append([Record("test")])
    await export_log(log, store, file)
    new_log = MemoryLog(MemoryStore(identity="y"))
    await import_log(file, new_log, store_)
    for handle in (log, new_log):
        await handle.close()
    return store_


async def test_moved_jobs_keep_their_ids_and_do_not_run_again(tmp_path: Path) -> None:
    names = map(str, count())
    store = MemoryKeyValueStore()
    book = Book(store, lambda: next(names))
    late = await book.submit(replace(SUBMISSION, request_id="z"))
    early = await book.submit(replace(SUBMISSION, request_id="b"))  # the first one by its key
    for job in (late, early):
        await book.store_event(job.id, attempt("1"))
        await book.store_event(job.id, Ending("1", Outcome.SUCCESS, 0, "", 3_000))
    jobs = (await book.look()).jobs
    assert {job.state for job in jobs.values()} == {BatchState.SUCCESS}

    new = await moved(store, tmp_path / "file")
    found = await Book(new, lambda: next(names)).look()
    assert found.jobs == jobs
    assert found.orphans == []
    seen = RingView("b", "b2", {}, frozenset(), frozenset(), True, 9, 10**9)
    assert steps(found.jobs.values(), seen) == []


async def test_moved_session_keeps_the_entries_of_its_earlier_owners(tmp_path: Path) -> None:
    store, key = MemoryKeyValueStore(), Key("ann", "s1")
    entries = [StateEntry(Settings(schema=name)) for name in ("one", "two")]
    first, second = Adoption(1, "n1", "a"), Adoption(2, "n2", "b", replaces="n1")
    await store.put(key.adoption(1, "n1"), RECORDS.to_bytes(first))
    await store.put(key.entry(0, "n1"), RECORDS.to_bytes(Written(entries[0])))
    await store.put(key.adoption(2, "n2"), RECORDS.to_bytes(second))
    await store.put(key.entry(1, "n1"), RECORDS.to_bytes(Written(entries[1])))  # came too late
    before = stored_session(key, await store.scan(key.prefix))
    assert before is not None and [each.entry for each in before.entries] == entries[:1]
    new = await moved(store, tmp_path / "file")
    assert stored_session(key, await new.scan(key.prefix)) == before
