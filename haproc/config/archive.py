"""What the archive may read, and what is shown of it: keys below ``archive``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mask(StrEnum):
    """What of a statement's literals the archive does not show."""

    LITERALS = "literals"
    """All of them."""
    SECRETS = "secrets"
    """Values behind words such as ``password``, ``secret``, ``token`` or ``key``."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Who may read what was applied, and what is shown of it."""

    user: str | None = None
    """The one user who may; none: nobody. It reads everybody's statements."""
    mask: Mask = Mask.LITERALS
    """The safe choice: a literal may be anybody's data."""
    unmasked: tuple[str, ...] = ()
    """Patterns of tables; a statement that writes these alone hides its secrets only."""
    statement_characters_max: int = 4000
    """What is longer is cut. Chosen: enough to know a statement again."""
    holds_trimming: bool = False
    """Whether the log keeps what is not archived; an archive that stopped lets it grow."""
