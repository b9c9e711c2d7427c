"""Rows in parts (docs/proofs/staging.md, "Rows in parts").

In simulated rings a part has two rows, so five ids make three parts. Each query draws random
numbers, so clusters that took different rows differ.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from haproc.classify.names import STAGING_SCHEMA
from haproc.engine import pieces
from haproc.engine.lane import SparkLane
from haproc.engine.statement import SparkPlan
from haproc.failure import RequestError
from haproc.replicate.apply import computing
from haproc.replicate.apply.staging_tables import StagingTables
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import from_record
from haproc.replicate.records.rows import Part, QueryWrite, Rows
from tests.simulation import connect
from tests.simulation.broken import BreakRule, slowest_ignored
from tests.simulation.computed import gather, make
from tests.simulation.directed import Stage, as_story
from tests.simulation.network import Refused
from tests.simulation.plans import STAGING, text_of
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import insert
from tests.simulation.test_computed import rows_records, seen, tables
from tests.simulation.violations import Violation, found_by

IDS = ["i1", "i2", "i3", "i4", "one"]
GATHERING = (Step.GATHER_PART, Step.GATHER_DONE, Step.STAGING_DROP)
STEPS = (
    Step.PART_BEFORE,
    Step.PART_AFTER,
    Step.ROWS_COMPUTED,
    Step.ROWS_AFTER,
    Step.APPLY_AFTER,
    Step.STAGING_DROP,
)


async def ids(stage: Stage) -> None:
    """Make the tables, with five ids."""
    await tables(stage)
    for each in IDS[:-1]:
        await stage.submit("b", insert(each, "ids", "b"))
    await stage.ready("a", "b", "c")


async def check_rows_settled(stage: Stage) -> None:
    """Heal all faults; check that each cluster has the five rows once and no staging table is
    left.
    """
    await stage.settle()
    # What could not be dropped is dropped behind the next statement.
    await stage.submit("b", insert("last", "ids", "b"))
    for node in stage.ring.nodes.values():
        assert sorted(map(str, seen(stage, node.name, "g"))) == IDS, node.name
    await stage.until(lambda: not any(n.spark.staged() for n in stage.ring.nodes.values()))


def parts(stage: Stage) -> list[Part]:
    return stage.records(Part)


def made(stage: Stage, name: str) -> list[str]:
    """Return the staging tables that were made on a cluster."""
    begun = [sql.split()[2] for _, by, sql in stage.commits if by == name and "CREATE" in sql]
    return [table for table in begun if table.startswith(STAGING)]


async def sent(stage: Stage) -> None:
    """Submit the write to one cluster after another until it is answered."""
    for name in "abcabc":
        with contextlib.suppress(Refused, RequestError, TimeoutError):
            await stage.apply(name, gather("g", "a"))
            await asyncio.sleep(30)  # whatever is struck behind the answer is struck by now
            return
    pytest.fail("nobody answered")


@as_story()
async def test_rows_in_parts_are_gathered_and_appear_at_once(stage: Stage) -> None:
    await ids(stage)
    outcome = await stage.submit("a", gather("g", "a"))
    assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
    (rows,) = rows_records(stage)
    assert rows.filling is not None and not rows.filling.rows
    assert len(made(stage, "a")) == 1, "what it was computed in is read, too"
    assert [part.number for part in parts(stage)] == [0, 1, 2]
    await check_rows_settled(stage)
    commits = [sql for _, name, sql in stage.commits if name == "c" and "gathered" in sql]
    assert len(commits) == 2, "the table, and one statement for all parts"
    assert len(made(stage, "c")) == 1


@as_story()
async def test_table_created_from_rows_in_parts_has_all_rows(stage: Stage) -> None:
    await ids(stage)
    op = make("m", "a", "m0")
    assert isinstance(op.write, QueryWrite)
    sql = op.write.head + "SELECT id, chance() AS m FROM ids"
    op = replace(op, write=structs.replace(op.write, sql=sql))
    await stage.apply("a", op)
    await stage.settle()
    assert len(stage.node("b").spark.dump()["m0"]) == 5


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["process", "spark", "both"])
def test_origin_killed_at_any_step_leaves_the_rows_once(what: str, step: Step, hits: int) -> None:
    struck("a", what, step, hits)


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", GATHERING)
@pytest.mark.parametrize("what", ["process", "spark", "both"])
def test_cluster_killed_while_it_gathers_leaves_the_rows_once(
    what: str, step: Step, hits: int
) -> None:
    struck("b", what, step, hits)


@as_story()
async def struck(stage: Stage, name: str, what: str, step: Step, hits: int) -> None:
    """Kill a cluster's process, its Spark or both when it reaches a step for the `hits`-th time."""

    def strike(node: Node) -> None:
        if what != "process":
            node.spark.kill()
        if what != "spark":
            node.kill()

    await ids(stage)
    stage.at(name, step, *[lambda node: None] * (hits - 1), strike)
    await sent(stage)
    await check_rows_settled(stage)


@pytest.mark.parametrize("step", [*STEPS, *GATHERING[:2]])
@as_story()
async def test_replaced_process_that_wakes_up_at_any_step_changes_nothing(
    stage: Stage, step: Step
) -> None:
    await ids(stage)

    def replaced(node: Node) -> None:
        node.freeze()
        node.replace()

    name = "b" if step in GATHERING[:2] else "a"
    stage.at(name, step, replaced)
    await sent(stage)
    stage.node(name).thaw()
    await check_rows_settled(stage)


@as_story()
async def test_attempts_to_gather_use_different_staging_tables(stage: Stage) -> None:
    await ids(stage)

    def rate(rate: float) -> Callable[[Node], None]:
        return lambda node: setattr(node.spark, "environment_error_rate", rate)

    stage.at("b", Step.GATHER_PART, rate(0), rate(0), rate(1), rate(0))
    await stage.submit("a", gather("g", "a"))
    await check_rows_settled(stage)
    assert len(set(made(stage, "b"))) == len(made(stage, "b")) == 2


@as_story()
async def test_dropped_staging_table_does_not_fail_the_write(stage: Stage) -> None:
    await ids(stage)

    def dropped(node: Node) -> None:
        for table in node.spark.staged():
            node.spark.mend(f"DROP TABLE {table}")

    stage.at("b", Step.GATHER_DONE, dropped)
    await stage.submit("a", gather("g", "a"))
    await check_rows_settled(stage)


@as_story()
async def test_parts_without_a_rows_record_are_ignored(stage: Stage) -> None:
    await ids(stage)
    stage.at("a", Step.PART_AFTER, lambda node: None, Node.kill)
    await sent(stage)
    (rows,) = rows_records(stage)
    assert rows.filling is not None and rows.by != "a"
    assert {part.by for part in parts(stage)} == {"a", rows.by}
    await check_rows_settled(stage)


@as_story(limits=replace(LIMITS, window_records=64))
async def test_parts_outlive_trimming_while_a_cluster_needs_them(stage: Stage) -> None:
    await ids(stage)
    stage.node("c").kill()
    await stage.submit("a", gather("g", "a"))
    for n in range(300):
        await stage.submit("b", insert(f"later{n}", "ids", "b"))
    stage.node("c").start()
    await stage.ready("c")
    await check_rows_settled(stage)


# -- rules broken on purpose -------------------------------------------------------------------


def same_table_again(patch: pytest.MonkeyPatch) -> None:
    """Use one staging table for all attempts at an operation, of every process."""

    def named(offset: int, epoch: int, attempt: int) -> str:
        return f"{pieces.CATALOG}.{STAGING_SCHEMA}.r_{offset}"

    async def nothing(self: StagingTables) -> None:
        self._cleaned.set()

    def tolerant(plan: Any) -> str:
        return text_of(plan).replace("CREATE TABLE staging_", "CREATE TABLE IF NOT EXISTS staging_")

    patch.setattr(pieces, "staging_name", named)
    patch.setattr(StagingTables, "clean", nothing)
    patch.setattr(connect, "text_of", tolerant)


def struck_while_it_gathers() -> None:
    struck("b", "both", Step.GATHER_PART, 3)


def statement_without_mark(patch: pytest.MonkeyPatch) -> None:
    """Run the statement that reads the staging table without a transaction marker."""
    apply = SparkLane.apply

    async def unmarked(self: SparkLane, write: Any, settings: Any, mark: Any, **more: Any) -> Any:
        read = isinstance(write, SparkPlan) and STAGING_SCHEMA.encode() in write.plan
        return await apply(self, write, settings, None if read else mark, **more)

    patch.setattr(SparkLane, "apply", unmarked)


def struck_before_it_is_known() -> None:
    struck("a", "process", Step.APPLY_AFTER, 1)


def parts_of_others(patch: pytest.MonkeyPatch) -> None:
    """Name the first parts in the log as one's own, also those of another process."""
    materialise = computing.materialise  # type: ignore[attr-defined]

    async def mixed(query: Any, session: Any, stage: Any, keep: Any, *more: Any) -> Any:
        first: dict[int, int] = {}

        async def kept(number: int, rows: bytes) -> int:
            place: int = await keep(number, rows)
            return KNOWN.setdefault(number, first.setdefault(number, place))

        return await materialise(query, session, stage, kept, *more)

    async def taken(self: StagingTables, rows: Rows, number: int, place: int) -> bytes:
        (entry,) = await self._core.own_log.read_log(place, records_max=1)
        part = from_record(entry.record)
        assert isinstance(part, Part)
        return part.rows

    KNOWN.clear()
    patch.setattr(computing, "materialise", mixed)
    patch.setattr(StagingTables, "_part", taken)


KNOWN: dict[int, int] = {}


@as_story()
async def rows_that_mix_parts(stage: Stage) -> None:
    """Check that all parts of a statement are of one process after another died amid its parts."""

    await ids(stage)
    stage.at("a", Step.PART_AFTER, lambda node: None, Node.kill)
    await sent(stage)
    (rows,) = rows_records(stage)
    assert rows.filling is not None
    by = {part.by for at, part in placed(stage) if at in rows.filling.parts}
    assert by == {rows.by}, "rows name parts of another one"


def placed(stage: Stage) -> list[tuple[int, Part]]:
    """Return the parts in the log, with their offsets."""
    found = enumerate(stage.ring.store.all_messages())
    return [(at, message) for at, message in found if isinstance(message, Part)]


@pytest.mark.parametrize(
    ("break_rule", "found", "expected"),
    [
        (same_table_again, struck_while_it_gathers, Violation.UNEQUAL),
        (statement_without_mark, struck_before_it_is_known, Violation.UNEQUAL),
        (parts_of_others, rows_that_mix_parts, "rows name parts of another one"),
        (
            slowest_ignored,
            test_parts_outlive_trimming_while_a_cluster_needs_them,
            Violation.NOT_READY,
        ),
    ],
)
def test_rule_about_parts_broken_on_purpose_is_found(
    break_rule: BreakRule,
    found: Callable[[], None],
    expected: Violation | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(found, expected)
