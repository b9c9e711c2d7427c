"""Tests of the kill harness's renewals: rebuilds and repairs, as the clusters' states require."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from haproc.cli.queue import AskError
from tests.fault.torture import renewals
from tests.fault.torture.history import History
from tests.fault.torture.plan import Deed
from tests.fault.torture.renewals import Renewals
from tests.fault.torture.stage import Stage

HALF_MADE = "tables (t) were to be copied at offset 7, which failed (see the log); rebuild"


def status(state: str = "READY", **more: Any) -> dict[str, Any]:
    known = {"incarnation": "1", "reason": "", "cursor": 0, "copy": None, "copy_failed": None}
    return {**known, "state": state, **more}


class Ring:
    """Members of a ring without processes."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class Scripted(Renewals):
    """Receives the answers that the test gives; None: the HAProc is silent."""

    def __init__(self, history: History, *answers: dict[str, Any] | None) -> None:
        super().__init__(cast(Stage, Ring(["a", "b", "c"])), 1, history)
        self.answers = list(answers)
        self.requests: list[str] = []

    async def _ask(self, name: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self.requests.append(f"{method} {path.rpartition('/')[2]}")
        answer = self.answers.pop(0)
        if answer is None:
            raise AskError("silent", 3)
        return answer

    async def _command(self, what: str, name: str, *more: str) -> str:
        return f"{what} {name}"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setattr(renewals, "_POLL_S", 0.0)
    made = History(tmp_path / "history.jsonl")
    yield made
    made.close()


def end(history: History, deed: Deed, *answers: dict[str, Any] | None, name: str = "c") -> str:
    return asyncio.run(Scripted(history, *answers)._do(deed, name))


def test_rebuild_is_done_when_a_new_process_serves(history: History) -> None:
    later = [status(), None, status("COPYING", incarnation="2"), status(incarnation="2")]
    assert end(history, Deed.REBUILD, status(), {}, *later) == "done"


def test_rebuild_is_requested_again_if_a_kill_took_the_answer(history: History) -> None:
    assert end(history, Deed.REBUILD, None, status(), None, {}, status(incarnation="2")) == "done"


def test_rebuild_without_any_answer_is_refused(history: History, monkeypatch: Any) -> None:
    monkeypatch.setattr(renewals, "OVER_S", 0.05)
    assert end(history, Deed.REBUILD, *[None] * 10_000) == "refused: silent"


def test_repair_is_done_when_the_cluster_serves_again(history: History) -> None:
    later = [status(cursor=7), None, status("COPYING", cursor=8), status(cursor=9)]
    assert end(history, Deed.REPAIR, {"offset": 7}, *later) == "done"


def test_repair_that_changed_nothing_is_reported_as_failed(history: History) -> None:
    failed = status(copy_failed={"offset": 7, "message": "no notes"})
    assert end(history, Deed.REPAIR, {"offset": 7}, failed) == "failed: no notes"


def test_repair_that_failed_half_way_is_followed_by_a_rebuild(history: History) -> None:
    half = status("DIVERGED", reason=HALF_MADE)
    rebuilt = [status("DIVERGED"), {}, status(incarnation="2")]
    found = end(history, Deed.REPAIR, {"offset": 7}, half, *rebuilt)
    assert found.startswith("failed half-way") and found.endswith("; rebuilt: done")


def test_repair_of_a_cluster_with_another_divergence_is_not_followed_by_a_rebuild(
    history: History, monkeypatch: Any
) -> None:
    monkeypatch.setattr(renewals, "OVER_S", 0.05)
    differs = [status("DIVERGED", reason="at offset 7 tables differ", cursor=8)] * 10_000
    assert end(history, Deed.REPAIR, {"offset": 7}, *differs).startswith("not over: DIVERGED")


@pytest.mark.parametrize(("name", "what"), [("guest", "add"), ("c", "remove")])
def test_guest_joins_and_a_member_leaves(history: History, name: str, what: str) -> None:
    assert end(history, Deed.MEMBER, name=name) == f"{what} {name}"


def test_renewal_is_refused_while_another_one_runs(history: History) -> None:
    scripted = Scripted(history)
    assert scripted.ask(Deed.REBUILD, "a") and scripted.busy
    assert not scripted.ask(Deed.REPAIR, "b")
