"""Files that statements name: which of them the operator allows.

Files lie outside the ring's tables: what is read there is not the same on every cluster, no rule by
table is asked, and what is written there may be written by every cluster in turn. So a statement
that names files is refused, unless each path lies below one of the prefixes in ``paths``. Paths are
compared in one normal form; one that can't be brought into it is below no prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
# File systems read these as patterns or escapes; ``*`` and ``?`` are fine, they match names only.
_UNCLEAR = re.compile(r"[\x00-\x1f\\%#\[\]{}^;]")
# Options of a source that say where something lies: path, basePath, avroSchemaUrl …
_LOCATING = re.compile(r"(?:path|paths|location|uri|url|dir|directory)$", re.IGNORECASE)


def locates(option: str) -> bool:
    """Whether the value of the option of this name says where something lies."""
    return _LOCATING.search(option) is not None


class NormalPath(NamedTuple):
    """A path in its normal form: the scheme in lower case, and the names from the root on."""

    scheme: str
    authority: str
    names: tuple[str, ...]


def place_of(path: str) -> NormalPath | None:
    """Return the normal form of an absolute path; None if it is relative or can't be told.

    ``/x`` is one of the cluster's default file system, and another place than ``file:/x``.
    """
    if _UNCLEAR.search(path) or path != path.strip():
        return None
    match = _SCHEME.fullmatch(path)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", path)
    authority = ""
    if scheme and rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
    if not rest.startswith("/"):
        return None
    names: list[str] = []
    for name in rest.split("/"):
        if name == ".." and not names:
            return None
        if name == "..":
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if ".." in rest.split("/") and ("*" in rest or "?" in rest):
        return None
    return NormalPath(scheme, authority, tuple(names))


@dataclass(frozen=True, slots=True)
class Paths:
    """The prefixes below which statements may name files; none by default."""

    prefixes: tuple[str, ...] = ()

    def allow(self, path: str) -> bool:
        """Whether the path lies at or below one of the prefixes."""
        place = place_of(path)
        return place is not None and any(_below(place, place_of(each)) for each in self.prefixes)

    def check(self, paths: frozenset[str]) -> None:
        """Raise RefusedError for the first of these paths that isn't allowed."""
        for path in sorted(paths):
            if not self.allow(path):
                raise RefusedError(
                    ErrorClass.PATH,
                    f"the statement names files, at {path}, that belong to no table of the ring",
                    "name a table (catalog.schema.table if its schema is called like a format), or "
                    "have the operator allow the path's beginning in paths",
                )


def _below(place: NormalPath, prefix: NormalPath | None) -> bool:
    if prefix is None or place[:2] != prefix[:2]:
        return False
    return place.names[: len(prefix.names)] == prefix.names


NO_PATHS = Paths()
