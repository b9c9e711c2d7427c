"""What the OpenAPI document says of one route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLIENT: Final = "client door"
OPERATOR: Final = "operator door"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes and answers with (names of schemas, or a media type).

    An empty answer is 204 without a body.
    """

    method: str
    path: str
    summary: str
    answer: str
    errors: tuple[str, ...] = ()
    body: str | None = None
    stream: bool = False
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    doors: tuple[str, ...] = (CLIENT,)
    also: tuple[tuple[str, str], ...] = ()
    status: str = "200"
