"""Which clusters are to have applied a write before it is answered: a request's wish, and rules."""

from __future__ import annotations

from contextlib import suppress

from haproc.classify.model import WriteConcern
from haproc.failure import RequestError
from haproc.replicate.agree.assurance import Assurance
from haproc.route.attempts import Attempts
from haproc.route.classifying import Classifying


class Concerns:
    """See the module. ``asks_for_more``: whether any rule asks for a concern."""

    def __init__(
        self,
        assurance: Assurance,
        attempts: Attempts,
        classifying: Classifying,
        *,
        asks_for_more: bool,
    ) -> None:
        self._assurance = assurance
        self._attempts = attempts
        self._classifying = classifying
        self._asks_for_more = asks_for_more

    def of(self, asked: WriteConcern | None, least: WriteConcern | None) -> WriteConcern:
        """Return what a request asks for, or the configuration; a rule's if that is more."""
        return (asked or self._assurance.default).at_least(least)

    async def again(self, asked: WriteConcern | None, offset: int) -> WriteConcern:
        """Return the same for one that the log has already, whatever may be said of it by now."""
        least = None
        operation = await self._attempts.operation(offset) if self._asks_for_more else None
        if operation is not None:
            with suppress(RequestError):
                least = await self._classifying.concern_of(operation)
        return self.of(asked, least)
