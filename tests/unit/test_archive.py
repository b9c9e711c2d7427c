"""The log's pages for the archive: the operations that count and their outcomes per cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dmq import Cursor, Log
from dmq.memory import MemoryKeyValueStore, MemoryLog, MemoryStore
from haproc.config.sections import Archive
from haproc.engine.statement import ArrowRows, SparkPlan
from haproc.failure import RequestError
from haproc.replicate.archive.account import APPLIED, ArchivedStatus, ArchivePosition, Ending, Fates
from haproc.replicate.archive.pages import Page, Pages
from haproc.replicate.log_state.members import Claims
from haproc.replicate.records.control import Fence, Skip
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Message,
    Operation,
    to_record,
)
from haproc.replicate.records.rows import ApplicationFailure, Rows
from tests.unit.archive_rig import pages_of
from tests.unit.canned import arrow
from tests.unit.operations import computed, insert, update

WRONG = ApplicationFailure("DIVIDE_BY_ZERO", "22012", "by zero")
OWN = "spark_catalog.haproc.operations"


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    made = MemoryLog(MemoryStore())
    yield made
    await made.close()


def _in_log(message: Message) -> Message:
    return replace(message, window=60_000) if isinstance(message, Operation) else message


async def fill(log: Log, *messages: Message, low: int | None = None) -> None:
    await log.append([to_record(_in_log(message)) for message in messages])
    for name in "abc":
        await log.commit_cursor(name, Cursor(await log.end() if low is None else low))


def rows_of(page: Page) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(page.rows) as reader:
        return list(reader.read_all().to_pylist())


def offsets(page: Page) -> list[int]:
    return [row["offset"] for row in rows_of(page)]


def statuses(row: dict[str, Any]) -> dict[str, str]:
    return {name: ended["outcome"] for name, ended in row["outcomes"]}


def pages(log: Log, **rules: Any) -> Pages:
    return pages_of(log, MemoryKeyValueStore(), Archive(user="archive", **rules))


async def test_page_contains_an_operation_with_its_tables_and_its_outcome_on_each_cluster(
    log: Log,
) -> None:
    await fill(log, replace(insert("x", "sales"), created_ms=1000, user="ann"), Claim("a", "a1"))
    page = await pages(log).page(0, 10)
    assert (page.start, page.end, page.applied_to, page.count) == (0, 2, 2, 1)
    (row,) = rows_of(page)
    assert row["statement"] == "INSERT INTO sales VALUES (?)"
    assert (row["user"], row["class"], row["kind"]) == ("ann", "asynchronous", "insert")
    assert (row["rows"], row["writes"], row["origin"], row["request"]) == (1, ["sales"], "a", "x")
    assert row["time"].timestamp() == 1
    assert statuses(row) == {"a": "applied", "b": "applied", "c": "applied"}
    assert dict(row["outcomes"])["b"]["latency_ms"] == 100
    assert dict(row["outcomes"])["c"]["latency_ms"] is None


async def test_page_ends_at_the_cursor_of_the_slowest_cluster(log: Log) -> None:
    await fill(log, *(insert(str(n), "t") for n in range(6)))
    slow = MemoryLog(MemoryStore())
    await fill(slow, *(insert(str(n), "t") for n in range(6)), low=4)
    page = await pages(slow).page(0, 10)
    assert (offsets(page), page.end, page.applied_to) == ([0, 1, 2, 3], 4, 4)
    page = await pages(slow).page(4, 10)
    assert (page.count, page.end) == (0, 4)
    assert (await pages(log).page(0, 10)).end == 6


async def test_page_without_operations_is_empty_and_advances(log: Log) -> None:
    await fill(log, Claim("a", "a1"), Claim("b", "b1"))
    page = await pages(log).page(0, 10)
    assert (rows_of(page), page.end, page.applied_to) == ([], 2, 2)


async def test_page_omits_repetitions_stale_operations_and_the_archive_user_own_writes(
    log: Log,
) -> None:
    stale = replace(update("late", "t"), analyzed_to=0, rests_on=frozenset("t"))
    defines = replace(update("ddl", "t"), redefines=frozenset("t"))
    own = replace(insert("own", OWN), user="archive")
    foreign = replace(insert("foreign", OWN), user="mallory")
    await fill(log, insert("x", "t"), insert("x", "t"), defines, stale, own, foreign)
    assert offsets(await pages(log).page(0, 10)) == [0, 2, 5]


async def test_page_omits_an_operation_analyzed_before_a_fence_that_precedes_it(log: Log) -> None:
    def write(name: str, let_in: int) -> Operation:
        return replace(insert(name, "t"), analyzed_to=let_in, rests_on=frozenset({"job/7"}))

    await fill(log, write("x", 0), Fence("job/7"), write("late", 0), write("new", 2))
    assert offsets(await pages(log).page(0, 10)) == [0, 3]


async def test_consecutive_pages_contain_each_operation_once(log: Log) -> None:
    ops = [insert(str(n % 7), "t") for n in range(40)]
    await fill(log, *ops)
    one = pages_of(log, MemoryKeyValueStore(), window_records=20)
    found: list[int] = []
    position = 0
    while position < 40:
        page = await one.page(position, 3)
        # Another HAProc, which read nothing before, says the same.
        other = await pages_of(log, MemoryKeyValueStore(), window_records=20).page(position, 3)
        assert (rows_of(page), page.end) == (rows_of(other), other.end)
        found += offsets(page)
        # Whoever goes by its table's newest offset asks for what is below the page's end again.
        position = page.end if page.count else max(page.end, position + 1)
    assert found == [0, 1, 2, 3, 4, 5, 6]


async def test_page_requested_from_the_newest_returned_offset_reads_no_record_again(
    log: Log,
) -> None:
    await fill(log, insert("x", "t"), Claim("b", "b2"), insert("y", "t"))
    reads: list[int] = []
    read = log.read

    async def counted(start: int, **limits: int) -> Any:
        reads.append(start)
        return await read(start, **limits)

    log.read = counted  # type: ignore[method-assign]
    archive_pages = pages(log)
    await fill(log, low=2)
    await archive_pages.page(0, 10)
    await fill(log)
    reads.clear()
    assert offsets(await archive_pages.page(1, 10)) == [2]
    assert reads == [2]


async def test_page_contains_rejections_errors_and_skips(log: Log) -> None:
    ddl = update("ddl", "t")
    query = computed("q", "s", "t")
    await fill(
        log,
        ddl,
        insert("bad", "t"),
        query,
        insert("skipped", "t"),
        Decision(0, "ddl", DecisionKind.REJECT, "a", 9, WRONG),
        FailureReport(1, "b", 9, WRONG),
        Rows(2, "q", "a", 9, 7),
        Skip(3, "skipped", "c", 9, "disk"),
        Decision(0, "ddl", DecisionKind.COMMIT, "b", 9),
    )
    rows = rows_of(await pages(log).page(0, 10))
    assert statuses(rows[0]) == dict.fromkeys("abc", "rejected")
    assert dict(rows[0]["outcomes"])["a"]["error"] == "DIVIDE_BY_ZERO"
    assert statuses(rows[1]) == {"a": "applied", "b": "failed", "c": "applied"}
    assert (rows[2]["rows"], statuses(rows[2])["a"]) == (7, "applied")
    assert statuses(rows[3]) == {"a": "applied", "b": "applied", "c": "skipped"}


def test_fates_of_a_replaced_process_are_void() -> None:
    fates = Fates(0, Claims())
    fates.note(3, Claim("a", "a1"))
    fates.note(5, Claim("a", "a2"))
    fates.note(6, Decision(1, "x", DecisionKind.REJECT, "a", 3, WRONG))
    assert fates.endings(1, "ab") is None
    fates.note(7, FailureReport(1, "a", 5, WRONG))
    assert fates.endings(1, "ab") == {
        "a": Ending(ArchivedStatus.FAILED, "DIVIDE_BY_ZERO"),
        "b": APPLIED,
    }
    fates.forget(2)
    fates.note(8, FailureReport(1, "b", -1, WRONG))
    assert fates.endings(1, "ab") is None


def test_fates_beyond_the_limit_keep_the_first_and_report_the_bound() -> None:
    fates = Fates(0, Claims(), known_max=10)
    for offset in (*range(0, 40, 2), *range(1, 40, 2)):
        fates.note(100 + offset, FailureReport(offset, "a", 0, WRONG))
    below = fates.known_below
    assert below is not None and 0 < below < 40
    assert all(fates.endings(offset, "a") for offset in range(below))
    assert not any(fates.endings(offset, "a") for offset in range(below, 40))


async def test_pages_of_more_fates_than_the_limit_contain_all_of_them(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.replicate.archive.account.KNOWN_MAX", 8)
    monkeypatch.setattr(Fates.__init__, "__defaults__", (8,))
    ops: list[Operation] = [insert(str(n), "t") for n in range(30)]
    await fill(log, *ops, *(FailureReport(n, "b", 99, WRONG) for n in range(30)))
    archive_pages, position, rows = pages(log), 0, []
    for _ in range(60):
        page = await archive_pages.page(position, 100)
        rows += rows_of(page)
        position = page.end
        if position == page.applied_to:
            break
    assert [row["offset"] for row in rows] == [*range(30)]
    assert {statuses(row)["b"] for row in rows} == {"failed"}


async def test_page_of_a_trimmed_log_starts_at_its_first_record(log: Log) -> None:
    await fill(log, *(insert(str(n), "t") for n in range(6)))
    await log.trim(3)
    page = await pages(log).page(0, 10)
    assert (page.start, offsets(page)) == (3, [3, 4, 5])


async def test_archive_position_advances_at_most_to_the_lowest_cursor_and_never_back(
    log: Log,
) -> None:
    store = MemoryKeyValueStore()
    archive_pages, position = pages_of(log, store), ArchivePosition(store)
    await fill(log, *(insert(str(n), "t") for n in range(6)), low=4)
    await archive_pages.archived(3)
    assert await position.read_archived_offset() == 3
    await archive_pages.archived(1)
    assert await position.read_archived_offset() == 3
    with pytest.raises(RequestError, match="only below 4"):
        await archive_pages.archived(5)


async def test_rows_and_plans_are_shown_by_a_digest_under_the_ring_key(log: Log) -> None:
    rows = replace(insert("r", "t"), insert=None, write=ArrowRows("t", arrow(id=[1, 2, 3])))
    plan = replace(insert("p", "t"), insert=None, write=SparkPlan(b"\x00\x01"))
    await fill(log, rows, replace(rows, id="again"), plan)
    first, again, planned = rows_of(await pages(log).page(0, 10))
    assert (first["statement"], first["rows"]) == (None, 3)
    assert first["digest"] == again["digest"] != planned["digest"]
    assert planned["statement"] is None


async def test_literals_are_shown_only_for_tables_that_the_rules_list(log: Log) -> None:
    shown = replace(update("x", "open.t"), writes=frozenset({"open.t"}))
    await fill(log, shown, update("y", "other.t"))
    first, second = rows_of(await pages(log, unmasked=("open.*",)).page(0, 10))
    assert first["statement"] == "UPDATE open.t SET x = 1"
    assert second["statement"] == "UPDATE other.t SET x = ?"
