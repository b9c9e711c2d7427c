"""Clusters that combine what they missed hold what the log's statements leave one after another.

What may be combined, and when, is broken on purpose, too.

Docs: docs/proofs/exactly-once.md, "Combining by key".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dmq import encode
from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from haproc.membership.state import State
from haproc.replicate.apply import applier
from haproc.replicate.compose.terms import Key
from haproc.replicate.compose.window import ComposedWindow, Row
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.units import Composing, Unit
from haproc.replicate.records.operation import to_record
from tests.simulation.broken import batch_formed_anew
from tests.simulation.directed import Stage, story
from tests.simulation.keyed import ACCOUNTS, build, simulate
from tests.simulation.ring import Node
from tests.simulation.scenario import Report, operation
from tests.simulation.spark import SimEngine
from tests.simulation.violations import Violation, found_by, found_in

SEEDS_RUN = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hundreds of runs say nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_combined_by_key_under_every_kind_of_fault_keeps_the_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composed: list[Unit] = []
    monkeypatch.setattr(applier.Applier, "_run_unit", counting(composed))
    reports = [simulate(seed) for seed in range(SEEDS_RUN)]
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    assert len(composed) > 3 * SEEDS_RUN


def counting(composed: list[Unit]) -> object:
    original = applier.Applier._run_unit

    async def run_unit(self: applier.Applier, unit: Unit, lane: object) -> None:
        if unit.composed:
            composed.append(unit)
        await original(self, unit, lane)  # type: ignore[arg-type]

    return run_unit


def success_assumed(patch: pytest.MonkeyPatch) -> None:
    """Combine what nobody is known to have applied."""
    patch.setattr(PeerSuccess, "succeeded", lambda self, offset: True)


def errors_unheard(patch: pytest.MonkeyPatch) -> None:
    """Take for success what others have passed, whatever they reported."""
    patch.setattr(PeerSuccess, "record", lambda self, message: None)


def marks_dropped(patch: pytest.MonkeyPatch) -> None:
    """Send statements without their marks."""
    patch.setattr(applier, "TransactionMarker", lambda application, version, guarded: None)


def row_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Let an upsert only change what the table has."""

    def come(self: ComposedWindow, key: Key, row: Row, *, surely: bool) -> None:
        """Nothing comes."""

    patch.setattr(ComposedWindow, "_come", come)


def row_inserted_whatever_the_table_has(patch: pytest.MonkeyPatch) -> None:
    """Take a key that the window does not know for one that the table does not have."""
    original = ComposedWindow._come

    def come(self: ComposedWindow, key: Key, row: Row, *, surely: bool) -> None:
        original(self, key, row, surely=True)

    patch.setattr(ComposedWindow, "_come", come)


@pytest.mark.parametrize(
    ("break_rule", "first"),
    [
        (success_assumed, 12),
        (errors_unheard, 14),
        (batch_formed_anew, 5),
        (marks_dropped, 0),
        (row_forgotten, 0),
        (row_inserted_whatever_the_table_has, 4),
    ],
)
def test_rule_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    # Who finds itself different applies nothing more, and lacks what comes later.
    beside = {Violation.DOUBLED, Violation.REJECTED, Violation.LOST}
    runs: Iterator[Report] = (simulate(seed) for seed in range(first, first + 300))
    found_in((run.problems for run in runs), Violation.OTHERWISE, beside)


# -- stories -----------------------------------------------------------------------------------


async def missed(stage: Stage, *whats: str) -> None:
    """Cluster c misses some writes; the others have done them before it is back."""
    for n, what in enumerate(whats):
        await stage.submit("a", build(what, f"{what}{n}", "a", 0))
    await stage.ready("a", "b")
    for name in "ab":
        replica = stage.replica(name)
        await replica.core.store()


async def accounts(stage: Stage) -> None:
    """Make the table, with a row in it that all clusters have."""
    await stage.submit("a", operation("make", Kind.CREATE_TABLE, ACCOUNTS, "a"))
    await stage.submit("a", build("enter", "first", "a", 0))
    await stage.ready("a", "b", "c")


def merges(stage: Stage, name: str) -> list[str]:
    return [sql for _, cluster, sql in stage.commits if cluster == name and "haproc_s" in sql]


MISSED = ("enter", "append", "put", "append", "enter", "append", "leave", "enter", "append")


def test_what_a_cluster_missed_is_one_statement_behind_the_first() -> None:
    async def tell(stage: Stage) -> None:
        await accounts(stage)
        stage.node("c").kill()
        await missed(stage, *MISSED[:8])
        stage.node("c").start()
        await stage.settle()
        assert len(merges(stage, "c")) == 1
        assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == ["enter7"]

    story(tell)


def test_upserts_that_a_cluster_missed_are_in_the_one_statement() -> None:
    async def tell(stage: Stage) -> None:
        await accounts(stage)
        stage.node("c").kill()
        await missed(stage, "append", "upsert", "leave", "ensure", "upsert", "ensure", "swap")
        await missed(stage, "upsert", "append")
        stage.node("c").start()
        await stage.settle()
        assert len(merges(stage, "c")) == 1
        assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == [",upsert0,append1"]

    story(tell)


def test_error_that_others_met_is_met_alone() -> None:
    async def tell(stage: Stage) -> None:
        await accounts(stage)
        stage.node("c").kill()
        await missed(stage, "append", "append", "append", "spoil", "mend", "append")
        stage.node("c").start()
        await stage.settle()
        assert len(merges(stage, "c")) == 2
        (row,) = stage.node("c").spark.dump()["accounts"]
        assert row == (0, "first,append0,append1,append2,append5", "mend4")

    story(tell)


async def nothing_told(self: SimEngine, table: str) -> Sequence[Column] | None:
    """Say that the table does more than store what it is given."""
    return None


async def not_told(self: SimEngine, table: str) -> Sequence[Column] | None:
    """Fail for reasons of the cluster's own."""
    raise EngineError(ErrorKind.ENVIRONMENT, "a file of the table's log cannot be read")


@pytest.mark.parametrize("told", [nothing_told, not_told])
@pytest.mark.parametrize("step", [Step.INTENT_AFTER, Step.APPLY_AFTER])
def test_combined_statement_that_cannot_be_made_again_is_taken_apart(
    step: Step, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(stage: Stage) -> None:
        await accounts(stage)
        stage.node("c").kill()
        await missed(stage, *MISSED)
        first = [] if step is Step.INTENT_AFTER else [lambda node: None]

        def die(node: Node) -> None:
            node.kill()
            monkeypatch.setattr(SimEngine, "plain_columns", told)

        stage.at("c", step, *first, die)
        stage.node("c").start()
        await stage.until(lambda: not stage.node("c").alive)
        await stage.settle()
        assert len(merges(stage, "c")) == (step is Step.APPLY_AFTER)
        assert [row[1] for row in stage.node("c").spark.dump()["accounts"]] == ["enter7,append8"]

    story(tell)


async def made_anew_meanwhile(stage: Stage) -> None:
    """A table gets its columns in another order, between writes that are combined."""
    await accounts(stage)
    stage.node("c").kill()
    await missed(stage, *MISSED)
    other = "CREATE TABLE accounts (v, k, w)"
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE accounts", "a"))
    await stage.submit("a", operation("again", Kind.CREATE_TABLE, other, "a"))
    for n in range(4):
        await stage.submit("a", build("enter", f"late{n}", "a", 0))
    await stage.submit("a", build("leave", "last", "a", 1))
    await stage.ready("a", "b")
    stage.node("c").start()
    await stage.settle()
    assert merges(stage, "c")


def test_columns_are_asked_for_anew_behind_ddl() -> None:
    story(made_anew_meanwhile)


def test_rule_of_asking_anew_broken_on_purpose_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Composing, "applied", lambda self, operations: None)
    found_by(lambda: story(made_anew_meanwhile), Violation.UNEQUAL)


def test_cursor_beyond_the_end_of_a_shortened_log_vouches_for_nothing_written_since() -> None:
    async def tell(stage: Stage) -> None:
        await accounts(stage)
        ring = stage.ring
        for name in "abc":
            stage.node(name).kill()
        # c had applied 40 records more, which the log has lost.
        stored = ring.store.cursors["c"]
        ring.store.cursors["c"] = replace(stored, offset=ring.store.end + 40)
        stage.node("c").start()
        await stage.until(lambda: stage.alive_state("c") is State.TOO_FAR_BEHIND)
        for n, what in enumerate(("append", "append", "spoil", "mend", "append")):
            entry = replace(build(what, f"{what}{n}", "a", 0), since=0, window=5000)
            ring.store.append_stored([encode(to_record(entry))])
        stage.node("b").start()
        await stage.until(lambda: stage.alive_state("b") is State.READY)
        # Nobody has passed them, so they run one by one, and what fails is told.
        assert merges(stage, "b") == []
        assert stage.report_of("b") is not None

    story(tell)
