"""The stories whose traces are in tests/golden/stories, each under the name of its function.

`python -m tests.simulation.stories` writes them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from haproc.classify.model import Kind
from haproc.config.sections import Limits
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from haproc.route.model import Request, SentSql
from tests.simulation import computed
from tests.simulation.directed import ddl, parallel
from tests.simulation.looking import service
from tests.simulation.recorded_stage import RecordedStage, trace_of
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import insert, operation

FOLDER: Final = Path(__file__).parents[1] / "golden" / "stories"
Story: TypeAlias = Callable[[RecordedStage], Coroutine[Any, Any, None]]
SHORT_WINDOW: Final = replace(LIMITS, window_records=8)
COPY: Final = "INSERT INTO copies SELECT x FROM t"
UPDATE: Final = "UPDATE t SET x = x || '!'"


async def ready(stage: RecordedStage) -> None:
    """Wait until all clusters have applied everything, and stored it."""
    await stage.ready(*stage.ring.names)
    await asyncio.sleep(1)


async def with_table(stage: RecordedStage, sql: str = "CREATE TABLE t (x)") -> None:
    """Make a table on all clusters; begin the story."""
    await stage.submit("a", ddl("a", sql=sql))
    await ready(stage)
    stage.begin()


def update(op_id: str) -> Operation:
    return operation(op_id, Kind.UPDATE, UPDATE, "a", writes=frozenset({"t"}))


async def a_plain_write(stage: RecordedStage) -> None:
    """An INSERT enters the log once; each cluster applies it, and its client hears of the first.

    The mark in the commit is the offset in the log.
    """
    await with_table(stage)
    await stage.ask("b", insert("one", "t", "b"))
    await ready(stage)
    stage.holds()


async def a_synchronous_ddl(stage: RecordedStage) -> None:
    """DDL runs on its origin first, then on the others in their order, then it is committed.

    What stands behind it waits on each cluster until that has run it. An error on the origin
    reaches nobody else.
    """
    stage.begin()
    await asyncio.gather(stage.ask("a", ddl("a")), stage.ask("b", insert("one", "t", "b")))
    await stage.ask("a", ddl("a", "again"))
    await ready(stage)
    stage.holds()


async def a_crash_after_the_commit(stage: RecordedStage) -> None:
    """A process dies when Spark has committed its write and its cursor does not say so.

    The client asks another one with the same id. The next process of a asks the table, and does
    not run the write again.
    """
    await with_table(stage)
    stage.strike("a", Step.APPLY_AFTER, stage.kills)
    await stage.ask("a", insert("one", "t", "a"))
    await stage.ask("b", insert("one", "t", "b"), age_s=1)
    stage.starts("a")
    await ready(stage)
    stage.holds()


async def a_decision_taken_over(stage: RecordedStage) -> None:
    """The origin of DDL dies between running it and deciding on it; a peer commits instead."""
    stage.begin()
    stage.strike("a", Step.FANOUT_AFTER, stage.kills)
    await stage.ask("a", ddl("a"))
    await stage.ready("b", "c")
    await stage.ask("c", ddl("c"), age_s=3)
    stage.starts("a")
    await ready(stage)


async def computed_rows_whose_origin_dies(stage: RecordedStage) -> None:
    """A write whose query would differ is replicated as rows, computed at its place in the order.

    Its origin dies under the query; another cluster computes them, for all. Spark is asked
    twice: for the columns, and for the rows.
    """
    for n, sql in enumerate(("CREATE TABLE ids (id)", *computed.SETUP)):
        await stage.submit("a", ddl("a", f"t{n}", sql))
    await stage.submit("a", insert("one", "ids", "a"))
    await ready(stage)
    stage.begin()
    stage.strike("a", Step.ROWS_COMPUTED, stage.kills)
    await stage.ask("a", computed.gather("g", "a"))
    await stage.ask("b", computed.gather("g", "b"), age_s=1)
    stage.starts("a")
    await ready(stage)
    stage.holds("gathered")


async def what_no_cluster_can_apply(stage: RecordedStage) -> None:
    """An operation that each cluster fails, again and again, is given up by the ring.

    Each says that it has not committed it and does not run it; whoever has read the words of all
    gives it up, in one place of the order. What stands behind it goes on: it stands in the log,
    whatever its client was told.
    """
    await with_table(stage)
    for node in stage.ring.nodes.values():
        node.spark.poison = {UPDATE}
    asking = asyncio.gather(
        stage.ask("a", update("poison"), 120), stage.ask("b", insert("one", "t", "b"), 120)
    )
    await stage.until(lambda: stage.failed["c"] == 1)
    with stage.aside():
        await stage.until(lambda: stage.failed["c"] == 7)
    stage.say("spark *", "fail it again and again, 7 times by now")
    await asking
    await stage.until(lambda: all(stage.state(name) is State.READY for name in "abc"))
    await ready(stage)
    stage.holds()


async def a_replaced_process_thaws(stage: RecordedStage) -> None:
    """A process freezes with a statement in its hands; another one takes over, and it wakes up.

    Its session is gone, so Spark refuses its statement; it reads the claim and ends.
    """
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("zero", "t", "a"))
    await ready(stage)
    stage.begin()

    def sending(node: Node) -> None:
        assert node.life is not None
        node.life.freeze_after(5)
        stage.say("b", "freezes on its way to Spark")

    stage.strike("b", Step.APPLY_BEFORE, sending)
    await stage.ask("a", insert("one", "t", "a"))
    await asyncio.sleep(1)
    stage.say("b2", "is started in its place")
    earlier = stage.node("b").replace()
    assert earlier is not None
    await stage.ready("b")
    stage.ring.weather.delay_s = 1  # it hears of the claim late
    stage.say("b", "thaws")
    earlier.thaw()
    await ready(stage)
    stage.holds()


def _extent(stage: RecordedStage) -> str:
    return f"the log begins at {stage.ring.store.start} and ends at {stage.ring.store.end}"


async def a_trim_with_a_lagging_cluster(stage: RecordedStage) -> None:
    """The log is trimmed up to what every cluster's stored cursor needs; one that is away holds it.

    With a window of 8 offsets for request ids, 10 below a cursor are kept.
    """
    await with_table(stage)
    stage.say("c", "is killed")
    stage.node("c").kill()
    with stage.aside():
        for n in range(12):
            await stage.submit("a", insert(f"w{n}", "t", "a"))
            await asyncio.sleep(2)
    stage.say("client", f"has written 12 rows: {_extent(stage)}")
    stage.starts("c")
    await ready(stage)
    await asyncio.sleep(3)
    stage.say("", _extent(stage))


async def a_stale_write_made_anew(stage: RecordedStage) -> None:
    """A table is altered between the look at it and the place of a write that reads it in the log.

    Every cluster passes over the first record; the write looks again, and is appended anew.
    """
    await stage.submit("a", ddl("a", "copies", "CREATE TABLE copies (x)"))
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    await ready(stage)
    stage.begin()
    wider = replace(parallel("b", "wider", "ALTER TABLE t ADD COLUMN y"), kind=Kind.ALTER_TABLE)
    left = [replace(wider, writes=frozenset({"spark_catalog.default.t"}))]

    async def meanwhile() -> None:
        if left:
            await stage.ask("b", left.pop())

    stage.say("client", f"sends {COPY} to a, which asks Spark what t is")
    answer = await service(stage, "a", meanwhile).execute(Request("copy", SentSql(COPY), "copy"))
    stage.say("client", f"hears of copy from a: {answer.report.outcomes['a']}")
    await ready(stage)
    stage.holds("copies")


async def a_queue_drained_in_batches(stage: RecordedStage) -> None:
    """A cluster that was away finds its queue in the log, and applies INSERTs many at a time.

    What it is about to run as one is stored before it starts, so that it is never formed anew.
    The first on a table after a start runs alone: an earlier process may have committed it.
    """
    await with_table(stage)
    stage.say("c", "is killed")
    stage.node("c").kill()
    with stage.aside():
        for n in range(6):
            await stage.submit("a", insert(f"w{n}", "t", "a"))
        await stage.submit("a", update("u"))
        await stage.submit("a", insert("last", "t", "a"))
    stage.say("client", f"has written 7 rows and an UPDATE: the log ends at {stage.ring.store.end}")
    stage.starts("c")
    await ready(stage)
    stage.holds()


async def a_write_taken_back(stage: RecordedStage) -> None:
    """A write runs for too long everywhere; its sender wants it taken back, and asks b.

    Each cluster stops it, looks, and says that it has not committed it; whoever has read the words
    of all takes it back. Another one was quick on c: it stands, and those who stopped it run it.
    """
    await with_table(stage)
    await stage.ask("a", insert("one", "t", "a"))
    await ready(stage)
    for name in ("slow", "quick"):
        for node in stage.ring.nodes.values():
            node.spark.statement_s = 0 if (node.name, name) == ("c", "quick") else 50
        at = stage.ring.store.end
        asking = asyncio.ensure_future(stage.ask("a", update(name)))
        await asyncio.sleep(5)
        stage.say("client", f"wants {name} back")
        revoking = stage.replica("b").revoking
        # The wish itself: whoever knows that it is vain does not say it.
        await revoking._poison_rejection.append_revoke(at, name, "its sender")
        for node in stage.ring.nodes.values():
            node.spark.statement_s = 0
        await asking
        await ready(stage)
    stage.holds()


async def a_divergence_found(stage: RecordedStage) -> None:
    """A row is changed past HAProc; a verification finds it, and takes that cluster out of service.

    Each cluster notes its tables at the same place of the order; the majority is right.
    """
    await with_table(stage)
    await stage.ask("a", insert("one", "t", "a"))
    await ready(stage)
    stage.say("somebody", "changes t on c, past HAProc")
    stage.node("c").spark.mend("UPDATE t SET x = 'other'")
    found = await stage.verify("a")
    for name, each in sorted(found["clusters"].items()):
        stage.say("operator", f"hears of {name}: {each['finding']}")
    await stage.until(lambda: stage.state("c") is State.DIVERGED)


STORIES: Final[dict[str, tuple[Story, Limits]]] = {
    script.__name__: (script, limits)
    for script, limits in (
        (a_plain_write, LIMITS),
        (a_synchronous_ddl, LIMITS),
        (a_crash_after_the_commit, LIMITS),
        (a_decision_taken_over, LIMITS),
        (computed_rows_whose_origin_dies, LIMITS),
        (what_no_cluster_can_apply, LIMITS),
        (a_write_taken_back, LIMITS),
        (a_replaced_process_thaws, replace(LIMITS, lanes=1)),
        (a_trim_with_a_lagging_cluster, SHORT_WINDOW),
        (a_stale_write_made_anew, LIMITS),
        (a_queue_drained_in_batches, LIMITS),
        (a_divergence_found, LIMITS),
    )
}


def trace(name: str) -> str:
    """Run a story, and return its trace."""
    return trace_of(*STORIES[name])


def write_all() -> None:
    """Write all traces again."""
    traces = {name: trace(name) for name in STORIES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in traces.items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    logging.disable()
    write_all()
    print(f"{len(STORIES)} stories are in {FOLDER}")
