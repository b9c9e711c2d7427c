"""Rows that come in parts (docs/proofs/staging.md, "Rows in parts").

The limits of simulated rings have two rows in a part, so five ids make three. Each query draws a
number by chance: clusters that did not take the same rows differ.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from dmq import decode
from haproc.classify.names import STAGING_SCHEMA
from haproc.engine import pieces
from haproc.engine.lane import SparkLane
from haproc.engine.statement import SparkPlan
from haproc.failure import RequestError
from haproc.replicate import trim
from haproc.replicate.apply import computing
from haproc.replicate.apply.staging_tables import StagingTables
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import from_record
from haproc.replicate.records.rows import Part, QueryWrite, Rows
from tests.simulation import connect
from tests.simulation.computed import gather, make
from tests.simulation.directed import Stage, story
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


async def gathered(stage: Stage) -> None:
    """Heal everything; each cluster has the five rows, once, and nothing else is left."""
    await stage.settle()
    # What could not be dropped is dropped behind the next statement.
    await stage.submit("b", insert("last", "ids", "b"))
    for node in stage.ring.nodes.values():
        assert sorted(map(str, seen(stage, node.name, "g"))) == IDS, node.name
    await stage.until(lambda: not any(n.spark.staged() for n in stage.ring.nodes.values()))


def parts(stage: Stage) -> list[Part]:
    return [message for message in stage.messages() if isinstance(message, Part)]


def made(stage: Stage, name: str) -> list[str]:
    """Return the staging tables that were made on a cluster."""
    begun = [sql.split()[2] for _, by, sql in stage.commits if by == name and "CREATE" in sql]
    return [table for table in begun if table.startswith(STAGING)]


async def sent(stage: Stage) -> None:
    """Send the write to one cluster after another until it is answered."""
    for name in "abcabc":
        with contextlib.suppress(Refused, RequestError, TimeoutError):
            assert (await stage.submit(name, gather("g", "a"))).status is OutcomeStatus.APPLIED
            await asyncio.sleep(30)  # whatever is struck behind the answer is struck by now
            return
    pytest.fail("nobody answered")


def test_rows_in_parts_are_gathered_and_appear_at_once() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        outcome = await stage.submit("a", gather("g", "a"))
        assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
        (rows,) = rows_records(stage)
        assert rows.filling is not None and not rows.filling.rows
        assert len(made(stage, "a")) == 1, "what it was computed in is read, too"
        assert [part.number for part in parts(stage)] == [0, 1, 2]
        await gathered(stage)
        commits = [sql for _, name, sql in stage.commits if name == "c" and "gathered" in sql]
        assert len(commits) == 2, "the table, and one statement for all parts"
        assert len(made(stage, "c")) == 1

    story(tell)


def test_table_is_made_of_rows_in_parts() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        op = make("m", "a", "m0")
        assert isinstance(op.write, QueryWrite)
        sql = op.write.head + "SELECT id, chance() AS m FROM ids"
        op = replace(op, write=structs.replace(op.write, sql=sql))
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED
        await stage.settle()
        assert len(stage.node("b").spark.dump()["m0"]) == 5

    story(tell)


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", ["process", "spark", "both"])
def test_origin_struck_at_any_step_rows_are_there_once(what: str, step: Step, hits: int) -> None:
    struck("a", what, step, hits)


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", GATHERING)
@pytest.mark.parametrize("what", ["process", "spark", "both"])
def test_cluster_struck_while_it_gathers_rows_are_there_once(
    what: str, step: Step, hits: int
) -> None:
    struck("b", what, step, hits)


def struck(name: str, what: str, step: Step, hits: int) -> None:
    """Strike a cluster when it comes to a step for the so-manieth time."""

    def strike(node: Node) -> None:
        if what != "process":
            node.spark.kill()
        if what != "spark":
            node.kill()

    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.at(name, step, *[lambda node: None] * (hits - 1), strike)
        await sent(stage)
        await gathered(stage)

    story(tell)


@pytest.mark.parametrize("step", [*STEPS, *GATHERING[:2]])
def test_replaced_process_that_wakes_up_at_any_step_changes_nothing(step: Step) -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)

        def replaced(node: Node) -> None:
            node.freeze()
            node.replace()

        name = "b" if step in GATHERING[:2] else "a"
        stage.at(name, step, replaced)
        await sent(stage)
        stage.node(name).thaw()
        await gathered(stage)

    story(tell)


def test_attempts_to_gather_never_share_a_table() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)

        def rate(rate: float) -> Callable[[Node], None]:
            return lambda node: setattr(node.spark, "environment_error_rate", rate)

        stage.at("b", Step.GATHER_PART, rate(0), rate(0), rate(1), rate(0))
        await stage.submit("a", gather("g", "a"))
        await gathered(stage)
        assert len(set(made(stage, "b"))) == len(made(stage, "b")) == 2

    story(tell)


def test_staging_table_that_somebody_drops_is_no_word_on_the_write() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)

        def dropped(node: Node) -> None:
            for table in node.spark.staged():
                node.spark.mend(f"DROP TABLE {table}")

        stage.at("b", Step.GATHER_DONE, dropped)
        await stage.submit("a", gather("g", "a"))
        await gathered(stage)

    story(tell)


def test_parts_that_no_rows_name_mean_nothing() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.at("a", Step.PART_AFTER, lambda node: None, Node.kill)
        await sent(stage)
        (rows,) = rows_records(stage)
        assert rows.filling is not None and rows.by != "a"
        assert {part.by for part in parts(stage)} == {"a", rows.by}
        await gathered(stage)

    story(tell)


def test_parts_outlive_trimming_while_a_cluster_needs_them() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.node("c").kill()
        await stage.submit("a", gather("g", "a"))
        for n in range(300):
            await stage.submit("b", insert(f"later{n}", "ids", "b"))
        stage.node("c").start()
        await stage.ready("c")
        await gathered(stage)

    story(tell, limits=replace(LIMITS, window_records=64))


# -- rules broken on purpose -------------------------------------------------------------------


def same_table_again(patch: pytest.MonkeyPatch) -> None:
    """Gather into a table of the operation's own, whoever does and however often."""

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
    """Run the statement that reads the staging table under no mark, like those that fill it."""
    apply = SparkLane.apply

    async def unmarked(self: SparkLane, write: Any, settings: Any, mark: Any, **more: Any) -> Any:
        read = isinstance(write, SparkPlan) and STAGING_SCHEMA.encode() in write.plan
        return await apply(self, write, settings, None if read else mark, **more)

    patch.setattr(SparkLane, "apply", unmarked)


def struck_before_it_is_known() -> None:
    struck("a", "process", Step.APPLY_AFTER, 1)


def parts_of_others(patch: pytest.MonkeyPatch) -> None:
    """Name the first parts in the log, whoever wrote them, and take them for one's own."""
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


def rows_that_mix_parts() -> None:
    """Tell of one that dies amid its parts; one statement's rows were drawn at one time."""

    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.at("a", Step.PART_AFTER, lambda node: None, Node.kill)
        await sent(stage)
        (rows,) = rows_records(stage)
        assert rows.filling is not None
        by = {part.by for at, part in placed(stage) if at in rows.filling.parts}
        assert by == {rows.by}, "rows name parts of another one"

    story(tell)


def placed(stage: Stage) -> list[tuple[int, Part]]:
    """Return the parts in the log, with their places."""
    found = enumerate(from_record(decode(data)) for data in stage.ring.store.everything)
    return [(at, message) for at, message in found if isinstance(message, Part)]


def trimmed_without_the_slowest(patch: pytest.MonkeyPatch) -> None:
    """Trim parts that one cluster still has to gather."""
    needs = trim.needs
    patch.setattr(trim, "needs", lambda *of: needs(*of)[1:])


@pytest.mark.parametrize(
    ("break_rule", "found", "expected"),
    [
        (same_table_again, struck_while_it_gathers, Violation.UNEQUAL),
        (statement_without_mark, struck_before_it_is_known, Violation.UNEQUAL),
        (parts_of_others, rows_that_mix_parts, "rows name parts of another one"),
        (
            trimmed_without_the_slowest,
            test_parts_outlive_trimming_while_a_cluster_needs_them,
            Violation.NOT_READY,
        ),
    ],
)
def test_rule_about_parts_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None],
    found: Callable[[], None],
    expected: Violation | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(found, expected)
