"""Compares this cluster's outcomes with the others', and takes it out of service if it is odd.

A difference shows itself in two ways: another cluster reports an application error on an
operation that succeeded here, or an operation failed here. In both cases the peers are asked for
their outcomes, and `haproc.replicate.agree.majority` decides which cluster is the odd one. Each
cluster judges only itself. Without a majority nobody is odd: that clusters differ is told instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import replace

from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import Cause, Divergence, Undecided
from haproc.replicate.agree.majority import is_odd, tied
from haproc.replicate.member.core import Core
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import Known, OperationOutcome, OutcomeStatus
from haproc.replicate.records.failures import ApplicationFailure
from haproc.replicate.records.operation import FailureReport, Operation
from haproc.replicate.records.progress import shortened
from haproc.spark_error import NO_DETAILS

logger = logging.getLogger(__name__)

REPORTS_KEPT_MAX = 1000
"""Reports on operations that this cluster has not reached yet."""
ROUNDS_MAX = 60
"""How often peers are asked before those that answered decide."""


def _word(error_class: object, sqlstate: object) -> str:
    return f"failed {error_class} {sqlstate}"


def _mine(outcome: OperationOutcome) -> str:
    if outcome.failure is not None and outcome.status is OutcomeStatus.FAILED:
        return _word(outcome.failure.error_class, outcome.failure.sqlstate)
    return outcome.status.value


class Comparison:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reports: OrderedDict[int, ApplicationFailure] = OrderedDict()
        self._reported: dict[int, dict[str, str]] = {}
        """What the log said again, after a restart, of operations that are not judged yet."""

    def resume(self) -> None:
        """Judge what an earlier process did not live to judge."""
        core = self._core
        for offset in core.notes.judging:
            if (known := core.outcomes.at(offset)) is not None:
                core.tasks.spawn(self._judge_again(known))
            else:
                core.notes.judged(offset)

    async def _judge_again(self, known: Known) -> None:
        """Judge it once all is heard of it that the log held at the start."""
        outcome = await self._core.outcomes.outcome(known)
        await self._judge(known.offset, known.facts, outcome)

    def reported(self, report: FailureReport) -> None:
        """Another cluster failed an operation."""
        if not self._core.condition.now.started and report.offset in self._core.notes.judging:
            word = _word(report.failure.error_class, report.failure.sqlstate)
            self._reported.setdefault(report.offset, {})[report.cluster] = word
        known = self._core.outcomes.at(report.offset)
        if known is None or known.outcome is None:
            self._reports[report.offset] = replace(report.failure, message="", details=NO_DETAILS)
            if len(self._reports) > REPORTS_KEPT_MAX:
                self._reports.popitem(last=False)
            return
        self._compare(report.offset, known.facts, known.outcome, report.failure)

    def ran(self, offset: int, operation: Operation, outcome: OperationOutcome) -> None:
        """This cluster ran an operation."""
        theirs = self._reports.pop(offset, None)
        if theirs is not None:
            self._compare(offset, Facts.of(operation), outcome, theirs)
        elif outcome.status is OutcomeStatus.FAILED:
            self._judge_soon(offset, Facts.of(operation), outcome)

    def _compare(
        self, offset: int, facts: Facts, outcome: OperationOutcome, theirs: ApplicationFailure
    ) -> None:
        same = outcome.failure is not None and outcome.failure.same_as(theirs)
        comparable = outcome.status not in (OutcomeStatus.REJECTED, OutcomeStatus.SKIPPED)
        if not same and comparable and not outcome.assumed:
            self._judge_soon(offset, facts, outcome)

    def _judge_soon(self, offset: int, facts: Facts, outcome: OperationOutcome) -> None:
        if offset not in self._core.notes.judging:
            self._core.notes.judge(offset)
            self._core.store.soon()
            self._core.tasks.spawn(self._judge(offset, facts, outcome))

    async def _judge(self, offset: int, facts: Facts, outcome: OperationOutcome) -> None:
        core = self._core
        words = {**self._reported.pop(offset, {}), core.me: _mine(outcome)}
        missing = set(core.members.peers) - words.keys()
        for _ in range(ROUNDS_MAX):
            for peer in sorted(missing):
                word = await self._outcome_of(peer, offset, facts)
                if word is not None:
                    missing.discard(peer)
                if word:
                    words[peer] = word
            if not missing:
                break
            await asyncio.sleep(core.timeouts.probe_interval_s)
        await self._conclude(offset, words, len(missing))

    async def _conclude(self, offset: int, words: dict[str, str], absent: int) -> None:
        core = self._core
        core.notes.judged(offset)
        if offset < core.watermarks.verified_below:
            pass  # the tables were found equal since
        elif is_odd(core.me, words, absent):
            logger.error(
                "offset %d: outcomes differ: %s; this cluster is the odd one", offset, words
            )
            core.diverge(Divergence(offset, Cause.OUTCOME))
        elif tied(words, absent):
            what = "; ".join(f"{name} {word}" for name, word in sorted(words.items()))
            logger.error("offset %d: outcomes differ: %s; run haproc verify", offset, what)
            core.undecided(Undecided(offset, Cause.OUTCOME, shortened(what)))
        await core.store()

    async def _outcome_of(self, peer: str, offset: int, facts: Facts) -> str | None:
        """Return a peer's outcome; None if it is not known yet, empty if it never will be."""
        try:
            answer = await self._core.peers.outcome(peer, offset, self._core.timeouts.peer_s)
        except PeerUnavailableError:
            return None
        if answer.get("assumed") and facts.unmarked:
            return None  # DDL in doubt that "already exists" may have failed before, too
        match answer.get("status"):
            case OutcomeStatus.APPLIED.value:
                return OutcomeStatus.APPLIED.value
            case OutcomeStatus.FAILED.value:
                return _word(answer.get("error_class"), answer.get("sqlstate"))
            case OutcomeStatus.SKIPPED.value:
                return ""
            case _:
                return None
