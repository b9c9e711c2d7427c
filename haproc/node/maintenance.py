"""Taking a cluster from its clients for maintenance, and giving it back, at an operator's word.

A drained HAProc finishes what it has under way and refuses what is new; it stays a member of the
ring and applies its queue, as far as its Spark is there. The word holds until it is taken back: it
is kept in a file beside the process's own, so that a HAProc that is upgraded or restarted takes no
load before the operator says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from dmq import Json
from haproc.config.model import Config
from haproc.failure import ErrorClass, refused
from haproc.membership.clusters import ClusterView
from haproc.membership.draining import refusal
from haproc.replicate.member.core import Core
from haproc.statements.registry import Registry

logger = logging.getLogger(__name__)


class Maintenance:
    """See the module."""

    def __init__(
        self,
        config: Config,
        core: Core,
        clusters: Callable[[], Iterable[ClusterView]],
        registry: Registry,
    ) -> None:
        self._core = core
        self._clusters = clusters
        self._registry = registry
        self._file = drained_file(config, core.me)
        if self._file.exists():
            logger.info("%s is drained (%s)", core.me, self._file)
            core.condition.drain(drained=True)

    def drain(self, cluster: str, *, force: bool) -> Mapping[str, Json]:
        """Take no more requests from clients; raises RequestError."""
        core = self._core
        self._check_name(cluster)
        if not core.condition.now.drained:
            why = refusal(core.me, core.condition.state, self._others(), force=force)
            if why:
                raise refused(
                    ErrorClass.NOT_NOW,
                    f"{core.me} is not drained: {why}",
                    "bring another cluster into service first; --force drains it all the same",
                )
            self._keep()
            core.condition.drain(drained=True)
        return self.standing()

    def undrain(self, cluster: str) -> Mapping[str, Json]:
        """Serve clients again, once caught up; raises RequestError."""
        self._check_name(cluster)
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise refused(ErrorClass.NOT_NOW, f"it stays drained: {error}") from error
        self._core.condition.drain(drained=False)
        return self.standing()

    def standing(self) -> Mapping[str, Json]:
        """Return how far the drain is."""
        core = self._core
        return {
            "cluster": core.me,
            "state": core.condition.state.value,
            "reason": core.condition.reason,
            "drained": core.condition.now.drained,
            "under_way": self._registry.request_admission.inside,
            "unfetched": self._registry.unfetched(),
        }

    def _others(self) -> Mapping[str, str]:
        views = (view for view in self._clusters() if view.name != self._core.me)
        return {view.name: view.state if view.alive else "" for view in views}

    def _keep(self) -> None:
        """Write the word down, durably, before anybody is told that it holds."""
        try:
            with self._file.open("wb") as file:
                file.write(b"drained by an operator\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
            raise refused(
                ErrorClass.NOT_NOW, f"it is not drained: {error}", "see state_dir"
            ) from error

    def _check_name(self, cluster: str) -> None:
        if cluster != self._core.me:
            raise refused(
                ErrorClass.BAD_REQUEST, f"this is the HAProc of {self._core.me}, not of {cluster}"
            )


def drained_file(config: Config, cluster: str) -> Path:
    """Return the file that says that a cluster is drained while it exists."""
    return config.state_dir / f"drained-{cluster}"
