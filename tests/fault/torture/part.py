"""A thread of the harness: stops when asked, and keeps the error that ended it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from tests.fault.torture.history import History


class Part(threading.Thread, ABC):
    """One of the activities that run side by side during a run."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._history = history
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Begin nothing new; running work is completed."""
        self._stopped.set()

    def run(self) -> None:
        """Work until stopped; an error is kept and noted."""
        try:
            self.work()
        except BaseException as error:
            self.error = error
            self._history.write("harness-failed", part=self.name, error=repr(error))

    @abstractmethod
    def work(self) -> None:
        """Work; return when stopped."""
