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
    """The one user who may read what was applied, the statements of all users included. Without it
    nobody may."""
    mask: Mask = Mask.LITERALS
    """What the archive hides. ``literals``: all texts and numbers; ``secrets``: values behind words
    such as ``password``, ``token`` or ``key``."""
    unmasked: tuple[str, ...] = ()
    """Patterns of tables (``spark_catalog.sales.*``). Of statements that write only these, the
    archive hides secrets alone."""
    statement_characters_max: int = 4000
    """Longer statements are cut."""
    holds_trimming: bool = False
    """Whether the log keeps what is not archived yet, however long that takes: a stopped archive
    lets the log grow."""
