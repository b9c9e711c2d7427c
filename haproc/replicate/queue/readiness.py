"""What an operation waits for that stands behind it in the log: a decision, or its rows."""

from __future__ import annotations

from haproc.replicate.records.operation import DecisionKind, Operation


class Readiness:
    """See the module. Operations are known by their offsets; ``me`` is the cluster's name."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._permitted: set[int] = set()
        self._verdicts: dict[int, DecisionKind] = {}
        self._provided: set[int] = set()

    def decide(self, offset: int, verdict: DecisionKind) -> bool:
        """Note a synchronous operation's fate; False if it was known: the first one counts."""
        if offset in self._verdicts:
            return False
        self._verdicts[offset] = verdict
        return True

    def rejected(self, offset: int) -> bool:
        """Whether it is known to be rejected."""
        return self._verdicts.get(offset) is DecisionKind.REJECT

    def provide(self, offset: int) -> None:
        """Note that the rows of a computed operation are in the log."""
        self._provided.add(offset)

    def permit(self, offset: int) -> None:
        """Let a synchronous operation run before its decision: its origin asked for it."""
        self._permitted.add(offset)

    def lacks_rows(self, offset: int, op: Operation) -> bool:
        """Whether it waits for its rows."""
        return op.computed and offset not in self._provided

    def lacks_decision(self, offset: int, op: Operation) -> bool:
        """Whether it waits for a decision, once its rows are there."""
        if not op.synchronous or op.origin == self._me or self.lacks_rows(offset, op):
            return False
        return offset not in self._permitted and offset not in self._verdicts

    def lacks(self, offset: int, op: Operation) -> bool:
        """Whether it waits for either."""
        return self.lacks_rows(offset, op) or self.lacks_decision(offset, op)

    def released(self, offset: int) -> None:
        """It was run here."""
        self._permitted.discard(offset)

    def forget(self, low: int) -> None:
        """Forget what is done."""
        self._verdicts = {at: verdict for at, verdict in self._verdicts.items() if at >= low}
        self._provided = {at for at in self._provided if at >= low}
