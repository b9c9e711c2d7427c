"""Jobs of a ring whose log was moved to another backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

from dmq import MemoryKeyValueStore, MemoryLog, MemoryStore, Record
from dmq.moving import export_log, import_log
from haproc.jobs.book import Book
from haproc.jobs.keeping import RingView, steps
from haproc.jobs.model import BatchState, Ending, Outcome
from tests.unit.test_jobs_history import ASKED, attempt


async def test_moved_jobs_keep_their_ids_and_do_not_run_again(tmp_path: Path) -> None:
    names = map(str, count())
    log, store = MemoryLog(MemoryStore(identity="x")), MemoryKeyValueStore()
    await log.append([Record("test")])
    book = Book(store, lambda: next(names))
    late = await book.submit(replace(ASKED, request_id="z"))
    early = await book.submit(replace(ASKED, request_id="b"))  # the first one by its key
    for job in (late, early):
        await book.add(job.id, attempt("1"))
        await book.add(job.id, Ending("1", Outcome.SUCCESS, 0, "", 3_000))
    jobs = (await book.look()).jobs
    assert {job.state for job in jobs.values()} == {BatchState.SUCCESS}

    await export_log(log, store, tmp_path / "file")
    new_log, new_store = MemoryLog(MemoryStore(identity="y")), MemoryKeyValueStore()
    await import_log(tmp_path / "file", new_log, new_store)
    moved = await Book(new_store, lambda: next(names)).look()
    assert moved.jobs == jobs
    assert moved.orphans == []
    seen = RingView("b", "b2", {}, frozenset(), frozenset(), True, 9, 10**9)
    assert steps(moved.jobs.values(), seen) == []
    for handle in (log, new_log):
        await handle.close()
