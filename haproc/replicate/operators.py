"""Carries out operators' requests to one cluster: show the queue, retry, skip, revoke, verify ….

A skip takes effect only by its record in the log. So it survives this process, all clusters see it,
and this cluster carries it out when it reads the record: at once, or after a restart.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from dmq import Entry, Json, LogError, TrimmedError
from haproc.engine.statement import ArrowRows, SparkPlan
from haproc.failure import ErrorClass, log_unavailable, refused
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.agree.assurance import nothing_computes
from haproc.replicate.agree.comparing import Verifier
from haproc.replicate.agree.rebuilding import rebuild, repair, state_of_peer
from haproc.replicate.agree.revoking import Revoking
from haproc.replicate.backing_up import Backups
from haproc.replicate.copying import Receiver
from haproc.replicate.member.core import Core
from haproc.replicate.queue.operation_status import (
    Advice,
    OperationStatus,
    Position,
    blockers,
    retry_advice,
    revoke_advice,
    skip_advice,
)
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.queue.units import MARKER, Unfinished, row_count
from haproc.replicate.records.control import REASON_CHARACTERS_MAX, Checksums, Skip, Verify
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.progress import CopyWay
from haproc.replicate.records.rows import ComputedPlan, SpooledRows
from haproc.replicate.restoring import Restorer, RestoreState

logger = logging.getLogger(__name__)

SKIP_WAIT_S: Final = 10.0
"""The longest wait until a skip in the log is carried out. After it the skip still takes effect."""
SQL_CHARACTERS_MAX: Final = 1_000_000


class Operators:
    """Carries out operators' requests, one method each; each raises RequestError."""

    def __init__(
        self,
        core: Core,
        verifier: Verifier,
        revoking: Revoking,
        backups: Backups,
        restorer: Restorer,
        receiver: Receiver,
    ) -> None:
        self._core = core
        self._verifier = verifier
        self._revoking = revoking
        self._backups = backups
        self._restorer = restorer
        self._receiver = receiver
        self.on_rebuild: Callable[[], None] = lambda: None
        """Called when this process must begin anew, for a rebuild or a restore."""

    # -- showing ---------------------------------------------------------------------------

    def queue(self, start: int, count: int) -> Mapping[str, Json]:
        """Return at most ``count`` operations of the queue, from offset ``start`` on, as JSON.

        Operations that are not read from the log yet are not in it.
        """
        core = self._core
        listed = itertools.dropwhile(
            lambda pair: pair[0].offset < start, blockers(core.schedule.unfinished())
        )
        page = list(itertools.islice(listed, count + 1))
        return {
            "cluster": core.me,
            "state": core.condition.state.value,
            "reason": core.condition.reason,
            "cursor": core.schedule.low,
            "read_to": core.schedule.read_to,
            "more": len(page) > count,
            "operations": [self._line(each, by) for each, by in page[:count]],
        }

    def _line(self, each: Unfinished, blocked_by: int | None) -> Json:
        status, op = self._operation_status(each, blocked_by), each.op
        return {
            "offset": each.offset,
            "head": status.head,
            "class": op.operation_class.value,
            "kind": "verification or copy" if op is MARKER else op.kind.value,
            "reads": [*sorted(op.reads)],
            "writes": [*sorted(op.writes)],
            "origin": op.origin,
            "age_s": _age_s(op),
            **_status_json(status),
        }

    def _operation_status(self, each: Unfinished, blocked_by: int | None) -> OperationStatus:
        core, offset = self._core, each.offset
        head, trouble = offset == core.schedule.low, core.troubles.of(offset)
        if trouble is not None:
            stuck = trouble.attempts >= core.timeouts.stuck_after_attempts
            together = (trouble.offsets[0], trouble.version) if trouble.offsets[1:] else None
            position = Position.STUCK if stuck else Position.FAILING
            return OperationStatus(position, None, together, trouble.attempts, trouble.error, head)
        if each.running:
            return OperationStatus(Position.RUNNING, head=head)
        if blocked_by is not None:
            return OperationStatus(Position.BLOCKED, blocked_by, head=head)
        if each.uncomputed:
            attempts, error = core.log_state.computations.trouble(offset)
            return OperationStatus(Position.UNCOMPUTED, None, None, attempts, error, head)
        return OperationStatus(Position.UNDECIDED if each.undecided else Position.QUEUED, head=head)

    def _status_at(self, offset: int) -> OperationStatus:
        """Return how far an operation is on this cluster: queued, running, failing, done …."""
        core, diverged = self._core, self._core.condition.now.diverged
        if diverged is not None and not diverged.applies and diverged.offset == offset:
            return OperationStatus(Position.DIFFERENT)
        for each, blocked_by in blockers(core.schedule.unfinished()):
            if each.offset == offset:
                return self._operation_status(each, blocked_by)
        beyond = offset >= core.schedule.read_to
        return OperationStatus(Position.QUEUED if beyond else Position.DONE)

    async def show(self, offset: int) -> Mapping[str, Json]:
        """Return all that is known of one operation, and what retry, skip and revoke would do."""
        core, op = self._core, await self._operation(offset)
        status, known = self._status_at(offset), core.outcomes.at(offset)
        outcome = known.outcome if known is not None else None
        return {
            "cluster": core.me,
            "offset": offset,
            "operation": _operation_json(op),
            **_status_json(status),
            "outcome": _outcome_json(outcome) if outcome is not None else None,
            "retry": asdict(retry_advice(status)),
            "skip": asdict(skip_advice(status)),
            "revoke": asdict(revoke_advice(status)),
            "unable": [*sorted(core.log_state.failure_votes.valid_votes(offset))],
        }

    async def _operation(self, offset: int) -> Operation:
        core, entries = self._core, list[Entry]()
        try:
            async with asyncio.timeout(core.timeouts.append_s):
                if offset < await core.log.end():
                    entries = await core.log.read(offset, records_max=1)
        except TrimmedError as error:
            raise refused(ErrorClass.OFFSET_UNKNOWN, str(error)) from error
        except (LogError, TimeoutError) as error:
            raise log_unavailable("the log cannot be read", error, "try again") from error
        if not entries or entries[0].offset != offset:
            raise refused(
                ErrorClass.OFFSET_UNKNOWN,
                f"the log has nothing at offset {offset}",
                "see haproc queue list",
            )
        message = from_record(entries[0].record)
        if not isinstance(message, Operation):
            kind = entries[0].record.kind
            raise refused(
                ErrorClass.OFFSET_UNKNOWN, f"offset {offset} is a {kind} record, not an operation"
            )
        return message

    # -- acting ----------------------------------------------------------------------------

    async def retry(self, cluster: str, offset: int) -> Mapping[str, Json]:
        """Try a failing operation again now: end the pause before its next attempt."""
        self._check(cluster)
        await self._operation(offset)
        status = self._status_at(offset)
        advice = _allowed(retry_advice(status), offset)
        trouble = self._core.troubles.of(offset)
        assert trouble is not None
        trouble.retry()
        self._core.update_stuck()
        return {"cluster": self._core.me, "offset": offset, "done": advice.text}

    async def skip(self, cluster: str, offset: int, reason: str) -> Mapping[str, Json]:
        """Append a record that this cluster skips an operation, and wait until it is carried out.

        After SKIP_WAIT_S the answer is that the skip is recorded.
        """
        core = self._core
        self._check(cluster)
        op = await self._operation(offset)
        _allowed(skip_advice(self._status_at(offset)), offset)
        skip = Skip(offset, op.id, core.me, core.own_log.epoch, reason[:REASON_CHARACTERS_MAX])
        recorded_at = await self._append(skip)

        def carried_out() -> bool:
            return core.schedule.read_to > recorded_at and not core.schedule.expects(offset)

        try:
            async with asyncio.timeout(SKIP_WAIT_S):
                await core.news.until(carried_out)
        except TimeoutError:
            status = "recorded"
        else:
            known = core.outcomes.at(offset)
            outcome = known.outcome if known is not None else None
            status = outcome.status.value if outcome is not None else OutcomeStatus.SKIPPED.value
        return {
            "cluster": core.me,
            "offset": offset,
            "recorded_at": recorded_at,
            "status": status,
            "state": core.condition.state.value,
            "reason": core.condition.reason,
        }

    async def revoke(
        self, offset: int, reason: str, without: Collection[str]
    ) -> Mapping[str, Json]:
        """Revoke an operation on all clusters, whether it waits, runs or fails; return its fate.

        ``without``: members that cannot vote, and for which the operator vouches: they have not
        applied it.
        """
        self._check(self._core.me)
        if (done := self._revoking.fate(offset)) is None:
            _allowed(revoke_advice(self._status_at(offset)), offset)
            absent = await self._vouched(without, offset)
            because = f": {reason}" if reason else ""
            done = await self._revoking.revoke(offset, f"an operator{because}", absent)
        return {"offset": offset, "status": done.fate.value, "text": done.text}

    async def _vouched(self, without: Collection[str], offset: int) -> dict[str, int]:
        """Return the newest claim of each cluster in ``without``; -1: none. Raises RequestError.

        Each must be unable to vote: it is silent, has left the ring since, or is COPYING: its old
        tables, which would show the operation, are being replaced.
        """
        core = self._core
        gone = core.log_state.failure_votes.left_since(offset) - {*core.members.peers}
        for name in frozenset(without) - gone:
            if name not in core.members.peers:
                raise refused(ErrorClass.NOT_NOW, f"cluster {core.me} has no peer {name}")
            copies = await state_of_peer(core, name) == State.COPYING.value
            if not core.peers.is_gone(name) and not copies:
                raise refused(
                    ErrorClass.NOT_NOW,
                    f"cluster {name} answers: it can itself report what it has applied",
                )
        claims = dict(core.log_state.claims.before(core.watermarks.known_to))
        return {name: claims.get(name, -1) for name in without}

    async def verify(self, trusted: str = "") -> Mapping[str, Json]:
        """Append a verification point: a record at which every cluster computes its checksums.

        ``trusted``: the cluster with the right tables; clusters that differ from it leave service.
        Empty: the majority decides.
        """
        core = self._core
        if trusted and trusted not in core.members.order:
            raise refused(
                ErrorClass.NOT_NOW,
                f"the ring has no cluster {trusted}",
                f"its members are {', '.join(core.members.order)}",
            )
        await nothing_computes(core, core.timeouts.peer_s)
        return {"marker": await self._append(Verify(core.me, trusted))}

    async def verification(self, marker: int) -> Mapping[str, Json]:
        """Return what is known of the verification at ``marker`` so far."""
        found = await self._verifier.describe(marker)
        if found is None:
            raise refused(
                ErrorClass.OFFSET_UNKNOWN, f"no verification at offset {marker} is known here"
            )
        return found

    async def rebuild(self, cluster: str, donor: str, way: str = "") -> Mapping[str, Json]:
        """Request that this cluster becomes a copy of another one; the process then begins anew.

        ``donor``: the other cluster; empty: any. ``way``: a `CopyWay`; empty: the configured one.
        """
        self._check_name(cluster)
        if way and way not in [*CopyWay]:
            raise refused(ErrorClass.BAD_REQUEST, f"the way is {' or '.join(CopyWay)}")
        await rebuild(self._core, donor, CopyWay(way) if way else None)
        logger.warning("cluster %s is rebuilt from %s", cluster, donor or "another one")
        self.on_rebuild()
        return {"cluster": cluster, "donor": donor, **({"way": way} if way else {})}

    def withdraw(self, cluster: str) -> Mapping[str, Json]:
        """Withdraw the request for a copy of another cluster, if the copy has not begun."""
        self._check_name(cluster)
        self._receiver.withdraw()
        return {"cluster": cluster}

    def backup(self, cluster: str, destination: str) -> Mapping[str, Json]:
        """Begin a backup of this cluster into ``destination``, in the background.

        Return its progress.
        """
        self._check_name(cluster)
        return self._backups.begin(destination)

    def backup_status(self) -> Mapping[str, Json]:
        """Return the progress of the newest backup of this process."""
        return self._backups.status()

    async def restore(
        self, cluster: str, source: str, offset: int, *, verify: bool
    ) -> Mapping[str, Json]:
        """Restore this empty cluster from the backup in ``source`` as of ``offset``.

        -1: the newest. If the request is accepted, the process begins anew. ``verify``: checksums
        are compared.
        """
        self._check_name(cluster)
        answer = await self._restorer.ask(source, offset, verify=verify)
        if answer["state"] == RestoreState.ASKED:
            self.on_rebuild()
        return answer

    async def repair(self, cluster: str, table: str, donor: str) -> Mapping[str, Json]:
        """Replace one or more tables by those of the cluster ``donor``, at a new `Copy` record."""
        self._check_name(cluster)
        offset, tables = await repair(self._core, table, donor)
        return {"cluster": cluster, "table": table, "offset": offset, "tables": [*tables]}

    def _check_name(self, cluster: str) -> None:
        if cluster != self._core.me:
            raise refused(
                ErrorClass.NOT_NOW,
                f"this is cluster {self._core.me}, not {cluster}",
                "check the addresses",
            )

    def _check(self, cluster: str) -> None:
        self._check_name(cluster)
        core = self._core
        if core.condition.state in (
            State.STARTING,
            State.STOPPED,
            State.FENCED,
            State.TOO_FAR_BEHIND,
        ):
            raise refused(
                ErrorClass.NOT_NOW,
                f"cluster {core.me} is {core.condition.state}: {core.condition.reason}",
            )

    async def _append(self, message: Skip | Verify) -> int:
        core = self._core
        try:
            return await core.own_log.append_once(message)
        except (LogError, TimeoutError) as error:
            raise log_unavailable("the log did not take the record", error, "try again") from error

    # -- records ---------------------------------------------------------------------------

    def handle_operator_record(self, offset: int, message: Skip | Verify | Checksums) -> None:
        """Handle a skip, verification or checksums read from the log; a repetition changes nothing.

        ``offset``: the record's.
        """
        if not isinstance(message, Skip):
            self._verifier.handle_verify_record(offset, message)
            return
        core = self._core
        logger.warning("%s skips offset %d: %s", message.cluster, message.offset, message.reason)
        replaced = core.log_state.claims.void(offset, message.cluster, message.epoch)
        if message.cluster != core.me or replaced or message.epoch < core.notes.born:
            return
        at, diverged = message.offset, core.condition.now.diverged
        if core.schedule.expects(at):
            core.schedule.isolate(at)
            core.troubles.skip(message)
        elif diverged is not None and not diverged.applies and at == diverged.offset:
            core.diverge(Divergence(at, Cause.OUTCOME, applies=True))
            core.store.soon()
        elif (known := core.outcomes.at(at)) and (known.outcome is None or known.outcome.assumed):
            core.outcomes.resolve(at, OperationOutcome(OutcomeStatus.SKIPPED))


def _allowed(advice: Advice, offset: int) -> Advice:
    if not advice.allowed:
        raise refused(
            ErrorClass.NOT_NOW, f"offset {offset}: {advice.text}", "see haproc queue show"
        )
    return advice


def _outcome_json(outcome: OperationOutcome) -> dict[str, Json]:
    shown: dict[str, Json] = {"status": outcome.status.value, "assumed": outcome.assumed}
    if (failure := outcome.failure) is not None:
        shown |= {"error_class": failure.error_class, "sqlstate": failure.sqlstate}
        shown["message"] = failure.message
    return shown


def _status_json(status: OperationStatus) -> dict[str, Json]:
    return {
        "position": status.position.value,
        "blocked_by": status.blocked_by,
        "together": list(status.together) if status.together else None,
        "attempts": status.attempts,
        "error": status.error,
    }


def _age_s(op: Operation) -> int | None:
    return max(0, time.time_ns() // 1_000_000 - op.created_ms) // 1000 if op.created_ms else None


def _operation_json(op: Operation) -> dict[str, Json]:
    settings: dict[str, Json] = {
        "catalog": op.settings.catalog,
        "schema": op.settings.schema,
        "time_zone": op.settings.time_zone,
        "ansi": op.settings.ansi,
        "confs": dict(op.settings.confs),
    }
    described: dict[str, Json] = {
        "request_id": op.id,
        "class": op.operation_class.value,
        "kind": op.kind.value,
        "origin": op.origin,
        "user": op.user,
        "created_ms": op.created_ms,
        "age_s": _age_s(op),
        "settings": settings,
        "reads": [*sorted(op.reads)],
        "writes": [*sorted(op.writes)],
        "tables_known": op.tables_known,
    }
    if isinstance(op.write, ArrowRows):
        described["rows"] = _rows_json(op, op.write)
    elif isinstance(op.write, SparkPlan):
        described["plan"] = {"bytes": len(op.write.plan)}
    elif isinstance(op.write, ComputedPlan):
        described["plan"] = {"bytes": op.size_bytes}
    elif isinstance(op.write, SpooledRows):
        described["rows"] = {"table": op.write.table}
    else:
        described["sql"] = op.write.sql[:SQL_CHARACTERS_MAX]
        described["sql_characters"] = len(op.write.sql)
    if op.computed:
        described["computed"] = True
    return described


def _rows_json(op: Operation, write: ArrowRows) -> dict[str, Json]:
    schema: Any = pa.ipc.read_schema(pa.py_buffer(write.rows))
    columns: list[Json] = [f"{field.name}: {field.type}" for field in schema]
    count = row_count(op)
    return {"table": write.table, "bytes": op.size_bytes, "count": count, "columns": columns}
