"""Looks now and then whether the ring's Spark servers are set alike, and says what is not.

HAProcs ask each other for this, they don't put it into their reports: a report with a field that an
older HAProc does not know would be refused by it, and with it the connection on which heartbeats
come. An older HAProc answers that it knows no such question, and its settings are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

from dmq import Json
from haproc.engine.errors import EngineError
from haproc.membership import drift
from haproc.membership.peers import PeerUnavailableError

logger = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""Chosen: a server is restarted for other settings, which takes about as long."""
_ANSWER_S: Final = 5.0
SHOWN_MAX: Final = 100
"""Settings in ``/clusterStatus`` and in one line of the log; the number counts all."""


class Server(Protocol):
    """See `haproc.engine.interface.Engine`."""

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]: ...


class SettingsSource(Protocol):
    """The other HAProcs."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def given_up(self, peer: str) -> bool: ...

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]: ...


class DriftWatch:
    """See the module. ``up`` is set while the server answers.

    ``defaults``: the settings that sessions begin with, by their names in Spark.
    """

    def __init__(
        self,
        cluster: str,
        secret: str,
        server: Server,
        peers: SettingsSource,
        up: asyncio.Event,
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._cluster = cluster
        self._secret = secret
        self._server = server
        self._peers = peers
        self._up = up
        self._defaults = defaults
        self._reported: dict[str, drift.Told] = {}
        self._mine: drift.Told = {}
        self.findings = drift.Findings()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._up.wait()
            try:
                await self.look()
            except EngineError as error:
                logger.info("%s: its settings were not read: %s", self._cluster, error.message)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask the peers and the own server, and compare; raises EngineError."""
        names = self._peers.names
        asked = [name for name in names if not self._peers.given_up(name)]
        answers = await asyncio.gather(*(self._ask(name) for name in asked))
        known = {
            name: reported or self._reported.get(name)
            for name, reported in zip(asked, answers, strict=True)
        }
        self._reported = {name: reported for name, reported in known.items() if reported}
        wanted = {*drift.to_look_up(self._reported.values()), *self._defaults}
        values = await self._server.server_settings(sorted(wanted))
        own = {drift.DEFAULTS: drift.text_of(self._defaults)} if self._defaults else {}
        self._mine = drift.tellable({**values, **own}, self._secret)
        found = drift.compare(self._mine, {name: self._reported.get(name) for name in names})
        self._note(replace(found, overridden=drift.overridden(values, self._defaults)))

    async def _ask(self, peer: str) -> drift.Told | None:
        try:
            return drift.read(await self._peers.settings(peer, _ANSWER_S))
        except PeerUnavailableError:
            return None

    def _note(self, found: drift.Findings) -> None:
        before, self.findings = self.findings, found
        self._log("settings that change results differ", before.differences, found.differences)
        self._log("settings must have other values", before.unfit, found.unfit)
        self._log(
            "settings of its Spark count for nothing in sessions, which have session_defaults",
            before.overridden,
            found.overridden,
        )

    def _log(self, what: str, before: Collection[object], now: Collection[object]) -> None:
        if now and now != before:
            some = "; ".join(str(each) for each in list(now)[:SHOWN_MAX])
            logger.warning("%s: %s (%d): %s", self._cluster, what, len(now), some)
        elif before and not now:
            logger.info("%s: no more: %s", self._cluster, what)

    # -- what the doors ask ----------------------------------------------------------------

    def settings(self) -> Mapping[str, Json]:
        """Return the body of ``GET /ha/v1/settings``; empty settings: not read yet."""
        return {"cluster": self._cluster, "settings": dict(self._mine)}

    def describe(self) -> Mapping[str, Json]:
        """Return what ``GET /clusterStatus`` shows: it is open to all, so no values."""
        found = self.findings
        return {
            "differing": [
                {"name": each.name, "clusters": [cluster for cluster, _ in each.there]}
                for each in found.differences[:SHOWN_MAX]
            ],
            "differing_count": len(found.differences),
            "unfit": _names(each.requirement.name for each in found.unfit),
            "unknown": _names(found.unknown),
            "session_defaults": dict(self._defaults),
            "overridden": _names(each.name for each in found.overridden),
        }


def _names(names: Iterable[str]) -> list[Json]:
    return [*names]
