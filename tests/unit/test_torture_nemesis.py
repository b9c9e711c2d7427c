"""Tests of the kill harness's nemesis: it injects faults, ends them, and notes unexpected ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fault.torture.history import History
from tests.fault.torture.nemesis import ARMED_S, HOLD_MAX_S, Nemesis
from tests.fault.torture.plan import Deed, Fault, Mode, Scheme, Target, Victim
from tests.fault.torture.stage import Stage

A: Victim = (Target.HAPROC, "a")
SPARK: Victim = (Target.SPARK, "a")


class Scene:
    """A stage without processes, and a clock that the test advances."""

    def __init__(self, tmp_path: Path, *faults: Fault) -> None:
        self.now = 0.0
        self.running: dict[Victim, str] = {A: "", SPARK: ""}
        self.starting: set[Victim] = set()
        self.signals: list[signal.Signals] = []
        self.links: dict[str, Mode] = {}
        self.proxies = self
        self.victims = [A, SPARK]
        self.file = tmp_path / "history.jsonl"
        self.history = History(self.file, lambda: self.now)
        self.hold = False
        self.renewed: list[tuple[Deed, str]] = []
        self.nemesis = Nemesis(
            cast(Stage, self), iter(faults), self.history, lambda: self.hold, self.renew
        )

    def renew(self, deed: Deed, name: str) -> bool:
        """Begin a renewal that never ends."""
        self.renewed.append((deed, name))
        return len(self.renewed) == 1

    def runs(self, victim: Victim) -> bool:
        return victim in self.running

    def signal(self, victim: Victim, number: signal.Signals) -> bool:
        self.signals.append(number)
        return victim in self.running

    def kill(self, victim: Victim) -> bool:
        return self.running.pop(victim, None) is not None

    def start(self, victim: Victim, fault: str, report: Callable[[str], None]) -> None:
        self.running[victim] = fault

    def log_tail(self, victim: Victim) -> str:
        return "its last words"

    def set(self, link: str, mode: Mode) -> None:
        self.links[link] = mode

    def until(self, end: float) -> list[tuple[str, str]]:
        """Let time pass and return the nemesis's notes of that time."""
        before = len(self.events())
        while self.now < end:
            self.now += 0.25
            self.nemesis._turn()
        return [(e["type"], str(e.get("action", ""))) for e in self.events()[before:]]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(*faults: Fault) -> Scene:
        made.append(Scene(tmp_path, *faults))
        return made[-1]

    yield make
    for each in made:
        each.history.close()


def fault(at_s: float, deed: Deed, *victims: Victim, **more: Any) -> Fault:
    return Fault(at_s, deed, Scheme.HAPROC, victims, **more)


def test_nemesis_starts_a_killed_process_after_the_pause(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.KILL, A, SPARK, lasts_s=2.0))
    assert play.until(0.75) == []
    assert play.until(2.0) == [("nemesis", "kill"), ("nemesis", "kill")]
    assert play.running == {}
    assert not play.nemesis.all_run()
    assert play.until(3.5) == [("nemesis", "start"), ("nemesis", "start")]
    assert play.running == {A: "", SPARK: ""}
    assert play.nemesis.kills == {Target.HAPROC: 1, Target.SPARK: 1}
    assert play.nemesis.all_run()


def test_nemesis_step_kills_arms_and_counts_the_second_death(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.STEP, A, step="apply.after:2", lasts_s=1.0))
    assert play.until(2.0) == [("nemesis", "kill"), ("nemesis", "start")]
    assert play.running[A] == "apply.after:2:kill"
    del play.running[A]
    assert play.until(3.0)[0] == ("nemesis", "died at step")
    assert play.until(5.0) == [("nemesis", "start")]
    assert play.running[A] == ""
    assert play.nemesis.kills[Target.HAPROC] == 2


@pytest.mark.parametrize("calm", [True, False])
def test_nemesis_gives_up_a_step_that_is_not_reached(
    scene: Callable[..., Scene], calm: bool
) -> None:
    play = scene(fault(1.0, Deed.STEP, A, step="apply.after:2", lasts_s=1.0))
    play.until(2.0)
    if calm:
        play.nemesis.calm()
    assert ("nemesis", "kill before its step") in play.until(3.0 if calm else ARMED_S + 2)
    play.until(play.now + 1.0)
    assert play.running[A] == ""
    assert play.nemesis.all_run()


def test_nemesis_thaws_a_frozen_process_and_accepts_a_second_fault_meanwhile(
    scene: Callable[..., Scene],
) -> None:
    play = scene(fault(1.0, Deed.FREEZE, A, lasts_s=2.0), fault(1.5, Deed.KILL, SPARK, lasts_s=0.5))
    assert [action for _, action in play.until(4.0)] == ["freeze", "kill", "start", "thaw"]
    assert play.signals == [signal.SIGSTOP, signal.SIGCONT]


def test_nemesis_does_not_thaw_a_frozen_process_that_was_killed(
    scene: Callable[..., Scene],
) -> None:
    play = scene(fault(1.0, Deed.FREEZE, A, lasts_s=2.0), fault(1.5, Deed.KILL, A, lasts_s=0.5))
    assert [action for _, action in play.until(4.0)] == ["freeze", "kill", "start"]
    assert play.signals == [signal.SIGSTOP]


def test_nemesis_skips_a_process_that_is_down(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.KILL, A, lasts_s=5.0), fault(2.0, Deed.KILL, A))
    assert [action for _, action in play.until(3.0)] == ["kill", "skip"]
    assert play.nemesis.kills[Target.HAPROC] == 1


def test_nemesis_heals_a_cut(scene: Callable[..., Scene]) -> None:
    cut = Fault(1.0, Deed.CUT, Scheme.CUT, link="a-b", mode=Mode.STALL, lasts_s=1.0)
    play = scene(cut)
    assert [action for _, action in play.until(1.5)] == ["cut"]
    assert play.links == {"a-b": Mode.STALL}
    assert [action for _, action in play.until(3.0)] == ["heal"]
    assert play.links == {"a-b": Mode.PASS}


def test_nemesis_notes_and_starts_a_process_that_ended_by_itself(
    scene: Callable[..., Scene],
) -> None:
    play = scene(fault(100.0, Deed.KILL, A))
    del play.running[A]
    assert play.until(3.0) == [("ended", ""), ("nemesis", "start")]
    assert play.events()[0]["log"] == "its last words"
    assert play.nemesis.kills == {}


def test_nemesis_starts_no_fault_after_calm(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.KILL, A))
    play.nemesis.calm()
    assert play.until(5.0) == []


def test_nemesis_on_hold_postpones_the_plan_and_ends_running_faults(
    scene: Callable[..., Scene],
) -> None:
    play = scene(fault(1.0, Deed.KILL, A, lasts_s=2.0), fault(4.0, Deed.KILL, SPARK))
    assert [action for _, action in play.until(2.0)] == ["kill"]
    play.hold = True
    assert [action for _, action in play.until(20.0)] == ["start"]
    play.hold = False
    assert play.until(21.5) == []
    assert [action for _, action in play.until(22.5)] == ["kill", "start"]


def test_nemesis_on_hold_for_too_long_injects_faults_again(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.KILL, A), fault(2.0, Deed.KILL, SPARK))
    play.hold = True
    assert play.until(HOLD_MAX_S) == []
    assert [action for _, action in play.until(HOLD_MAX_S + 5)] == ["kill", "start"]
    assert [action for _, action in play.until(2 * HOLD_MAX_S + 5)] == ["kill", "start"]


def test_nemesis_runs_one_renewal_at_a_time_and_kills_during_it(
    scene: Callable[..., Scene],
) -> None:
    first, second = fault(1.0, Deed.REBUILD, A), fault(2.0, Deed.REPAIR, A)
    play = scene(first, fault(1.5, Deed.KILL, A), second)
    assert [action for _, action in play.until(3.0)] == ["rebuild", "kill", "start", "skip"]
    assert play.renewed == [(Deed.REBUILD, "a"), (Deed.REPAIR, "a")]


def test_nemesis_does_not_start_a_process_that_left_the_ring(scene: Callable[..., Scene]) -> None:
    play = scene(fault(1.0, Deed.KILL, SPARK, lasts_s=2.0))
    assert [action for _, action in play.until(2.0)] == ["kill"]
    play.victims.remove(SPARK)
    assert play.until(5.0) == []
    assert play.running == {A: ""}
    assert play.nemesis.all_run()
