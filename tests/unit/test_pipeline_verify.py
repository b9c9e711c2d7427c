"""Tests of the verification program: it waits for clusters that read, up to its time limit."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import nullcontext
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from haproc.pipeline import ring, tables, verify
from haproc.pipeline.ring import ClientDoors, HttpAnswer, RingError
from haproc.pipeline.verify import PATH, POLL_S, equal, findings_text, verified
from tests.unit.door_rig import door

EQUAL = {"finding": "equal", "reason": ""}
SILENT = {"finding": "unavailable", "reason": "READY"}


def found(complete: bool, **clusters: dict[str, str]) -> dict[str, Any]:
    return {"marker": 7, "by": "a", "complete": complete, "clusters": clusters, "tables": {}}


class Ring(ClientDoors):
    """Client doors that return these answers, one after another; the last one repeats."""

    def __init__(self, *answers: dict[str, Any] | RingError) -> None:
        super().__init__(["a", "b"])
        self.answers = list(answers)
        self.paths: list[str] = []
        self.now = 0.0

    def ask(self, path: str, body: object = None) -> HttpAnswer:
        self.paths.append(path)
        if body is not None:
            return HttpAnswer(b'{"marker": 7}', Message())  # type: ignore[arg-type]
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RingError):
            raise answer
        return HttpAnswer(json.dumps(answer).encode(), Message())  # type: ignore[arg-type]

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def verified(self, wait_s: float) -> Any:
        return verified(self, wait_s, lambda: self.now, self.pause)


def test_verification_is_awaited_until_it_is_complete() -> None:
    haprocs = Ring(found(False, a=EQUAL, b=SILENT), found(True, a=EQUAL, b=EQUAL))
    assert equal(haprocs.verified(60))
    assert haprocs.paths == [PATH, f"{PATH}/7", f"{PATH}/7"] and haprocs.now == POLL_S


def test_cluster_that_never_answers_is_awaited_up_to_the_time_limit() -> None:
    haprocs = Ring(found(False, a=EQUAL, b=SILENT))
    came_to = haprocs.verified(60)
    assert haprocs.now == 60 and not equal(came_to)
    assert findings_text(came_to) == (
        "verification at offset 7: a equal, b unavailable (READY); not all have reported in time"
    )


def test_haproc_that_has_not_read_the_marker_is_skipped() -> None:
    haprocs = Ring(RingError("no verification", 404), found(True, a=EQUAL))
    assert equal(haprocs.verified(60)) and haprocs.at == 1


def test_marker_that_no_haproc_reads_is_an_error_at_the_time_limit() -> None:
    haprocs = Ring(RingError("no verification", 404))
    with pytest.raises(RingError, match="no HAProc has read the marker"):
        haprocs.verified(60)
    assert haprocs.now == 60


@pytest.mark.parametrize("status", [401, None])
def test_refusal_ends_the_wait_at_once(status: int | None) -> None:
    haprocs = Ring(RingError("refused", status))
    with pytest.raises(RingError, match="refused"):
        haprocs.verified(60)
    assert haprocs.now == 0


@pytest.mark.parametrize(
    ("came_to", "code"),
    [
        (found(True, a=EQUAL, b=EQUAL), 0),
        (found(True, a=EQUAL, b={"finding": "different", "reason": ""}), 3),
        (found(False, a=EQUAL, b=SILENT), 3),
        (RingError("refused", 401), 1),
    ],
)
def test_exit_code_shows_whether_all_clusters_are_equal(
    monkeypatch: pytest.MonkeyPatch, came_to: dict[str, Any] | RingError, code: int
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["verify", "--wait-s", "0"])
    monkeypatch.setattr(ring, "doors", lambda options, answer_s: Ring(came_to))
    monkeypatch.setattr(ring, "session", lambda options: nullcontext())
    monkeypatch.setattr(tables, "create", lambda *named: None)
    monkeypatch.setattr(verify, "keep", lambda spark, found, now: kept.append(found))
    assert verify.main() == code
    assert kept == ([] if code == 1 else [came_to])


async def test_haproc_that_never_answers_is_skipped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with door(tmp_path, archives="anonymous") as rig:
            doors = ClientDoors([silent_url, rig.url], answer_s=0.2)
            found = await asyncio.to_thread(verified, doors, 60)
    assert equal(found) and found["marker"] == 10
