"""Carries the plan out: kills, freezes and cuts, and starts again what it killed.

A separate thread that never waits for a recovery. A process that is gone although the nemesis did
not kill it "ended by itself", which is a finding. While it is asked to hold, the plan waits: on a
slow machine, too, the ring has to serve now and then. Between `Nemesis.calm` and `stop` there are
no more faults, but processes are still started again.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from haproc.ring.process import StartError
from tests.fault.torture.history import History
from tests.fault.torture.part import Part
from tests.fault.torture.plan import RENEWALS, Deed, Fault, Mode, Target, Victim
from tests.fault.torture.stage import Stage

_TURN_S = 0.05
ARMED_S = 30.0
"""A HAProc that has not reached its step by then is killed anyhow."""
_RESTART_S = 1.0
HOLD_MAX_S = 90.0
"""Chosen: then it injects one more fault, in any state of the ring."""


def _never() -> bool:
    return False


def _no_renewal(deed: Deed, name: str) -> bool:
    raise AssertionError(deed)


class Nemesis(Part):
    """Carries the plan out, see the module. ``kills`` counts processes that it killed."""

    def __init__(
        self,
        stage: Stage,
        faults: Iterator[Fault],
        history: History,
        hold: Callable[[], bool] = _never,
        renew: Callable[[Deed, str], bool] = _no_renewal,
    ) -> None:
        """``renew``: begins a renewal of a cluster; False if another one is under way."""
        super().__init__("nemesis", history)
        self.kills: Counter[Target] = Counter()
        self._stage = stage
        self._faults = faults
        self._next = next(faults, None)
        self._hold = hold
        self._renew = renew
        self._held_s = 0.0
        """The delay of everything against the plan."""
        self._held_in_a_row_s = 0.0
        self._turned = self._began = history.now()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._down: set[Victim] = set()
        self._frozen: set[Victim] = set()
        self._cut: set[str] = set()
        self._armed: dict[Victim, tuple[float, Fault]] = {}
        self._calm = threading.Event()

    def work(self) -> None:
        """Inject and end faults until stopped."""
        self._turned = self._began = self._history.now()
        while not self._stopped.wait(_TURN_S):
            self._turn()

    def calm(self) -> None:
        """Inject no more faults from now on."""
        self._calm.set()

    def all_run(self) -> bool:
        """True if no part is down, frozen, cut, armed or starting."""
        busy = self._down or self._frozen or self._cut or self._armed or self._stage.starting
        return not busy and not self._due and all(map(self._stage.runs, self._stage.victims))

    # -- turns -------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._wait_while_held()
        now = self._history.now() - self._began
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if self._calm.is_set():
            self._disarm(now, at_once=True)
        elif self._next is not None and self._next.at_s + self._held_s <= now:
            self._held_in_a_row_s = 0.0
            self._strike(self._next, now)
            self._next = next(self._faults, None)
        else:
            self._disarm(now, at_once=False)
        for victim in self._stage.victims:
            if victim not in self._down and victim not in self._stage.starting:
                self._look_after(victim, now)

    def _wait_while_held(self) -> None:
        now = self._history.now()
        passed_s, self._turned = now - self._turned, now
        if not self._hold():
            self._held_in_a_row_s = 0.0
        elif self._held_in_a_row_s < HOLD_MAX_S:
            self._held_in_a_row_s += passed_s
            self._held_s += passed_s

    def _later(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._number), action))

    def _note(self, action: str, fault: Fault | None = None, **fields: Any) -> None:
        scheme = {"scheme": fault.scheme.value} if fault else {}
        self._history.write("nemesis", action=action, **scheme, **fields)

    # -- striking ----------------------------------------------------------------------------

    def _strike(self, fault: Fault, now: float) -> None:
        if fault.deed is Deed.CUT:
            self._cut_link(fault, now)
            return
        if fault.deed in RENEWALS:
            ((target, name),) = fault.victims
            begins = self._renew(fault.deed, name)
            action = str(fault.deed) if begins else "skip"
            self._note(action, fault, deed=fault.deed, target=target, name=name)
            return
        for victim in fault.victims:
            target, name = victim
            if not self._can_be_struck(victim):
                self._note("skip", fault, deed=fault.deed, target=target, name=name)
            elif fault.deed is Deed.FREEZE:
                self._freeze(fault, victim, now)
            else:
                self._kill(fault, victim, now)

    def _can_be_struck(self, victim: Victim) -> bool:
        busy = victim in self._down or victim in self._stage.starting or victim in self._armed
        return not busy and self._stage.runs(victim)

    def _kill(self, fault: Fault, victim: Victim, now: float) -> None:
        if not self._stage.kill(victim):
            return
        self._frozen.discard(victim)
        self._count(victim, fault, "kill")
        if fault.deed is Deed.STEP:
            self._start(victim, fault=f"{fault.step}:kill")
            self._armed[victim] = (now + ARMED_S, fault)
        else:
            self._start_later(victim, now + fault.lasts_s)

    def _count(self, victim: Victim, fault: Fault, action: str) -> None:
        target, name = victim
        self.kills[target] += 1
        at = {"step": fault.step} if action == "died at step" else {}
        self._note(action, fault, target=target, name=name, **at)

    def _freeze(self, fault: Fault, victim: Victim, now: float) -> None:
        target, name = victim
        if victim in self._frozen or not self._stage.signal(victim, signal.SIGSTOP):
            return
        self._frozen.add(victim)
        self._note("freeze", fault, target=target, name=name, lasts_s=round(fault.lasts_s, 2))

        def thaw() -> None:
            if victim in self._frozen:
                self._frozen.discard(victim)
                self._stage.signal(victim, signal.SIGCONT)
                self._note("thaw", target=target, name=name)

        self._later(now + fault.lasts_s, thaw)

    def _cut_link(self, fault: Fault, now: float) -> None:
        link = fault.link
        if link in self._cut:
            self._note("skip", fault, link=link)
            return
        self._cut.add(link)
        self._stage.proxies.set(link, fault.mode)
        lasts_s = round(fault.lasts_s, 2)
        self._note("cut", fault, link=link, mode=fault.mode, lasts_s=lasts_s)

        def heal() -> None:
            self._stage.proxies.set(link, Mode.PASS)
            self._cut.discard(link)
            self._note("heal", link=link)

        self._later(now + fault.lasts_s, heal)

    # -- mending -----------------------------------------------------------------------------

    def _look_after(self, victim: Victim, now: float) -> None:
        if self._stage.runs(victim):
            return
        armed = self._armed.pop(victim, None)
        if armed is not None:
            self._count(victim, armed[1], "died at step")
            self._start_later(victim, now + armed[1].lasts_s)
            return
        target, name = victim
        log = self._stage.log_tail(victim)
        self._history.write("ended", target=target, name=name, log=log)
        self._start_later(victim, now + _RESTART_S)

    def _disarm(self, now: float, *, at_once: bool) -> None:
        """Kill the processes that do not reach their step."""
        for victim, (until, fault) in list(self._armed.items()):
            if at_once or now >= until:
                del self._armed[victim]
                if self._stage.kill(victim):
                    self._count(victim, fault, "kill before its step")
                else:
                    self._count(victim, fault, "died at step")
                self._start_later(victim, now)

    def _start_later(self, victim: Victim, at_s: float) -> None:
        self._down.add(victim)
        self._later(at_s, lambda: self._start(victim))

    def _start(self, victim: Victim, fault: str = "") -> None:
        target, name = victim
        # It leaves just now, or has left.
        if victim in self._stage.starting or victim not in self._stage.victims:
            self._down.discard(victim)
            return

        def failed(why: str) -> None:
            self._history.write("start-failed", target=target, name=name, why=why)

        self._down.discard(victim)
        self._note("start", target=target, name=name, armed=fault)
        try:
            self._stage.start(victim, fault, failed)
        except StartError as error:
            failed(str(error))
