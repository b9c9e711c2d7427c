"""A storage outside of all clusters, which each of them can reach, for backups.

Files by their whole paths. A table's content follows from its commits, as in Delta.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LOG = "_delta_log"


@dataclass
class Kept:
    """A Delta table in a folder, at one of its versions."""

    version: int = -1
    meta: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)


class Places:
    """See the module."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written: list[str] = []
        """Paths, once for each time that a whole file was written there."""

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self.files[path] = data
        self.written.append(path)

    def names(self, folder: str) -> dict[str, int]:
        """Return the files directly in a folder, and their sizes."""
        inside = f"{folder.rstrip('/')}/"
        return {
            path.removeprefix(inside): len(data)
            for path, data in self.files.items()
            if path.startswith(inside) and "/" not in path.removeprefix(inside)
        }

    def table(self, folder: str, version: int | None = None) -> Kept:
        """Return a table as of a version, or the newest one."""
        kept = Kept()
        while kept.version != version:
            commit = self.files.get(f"{folder}/{LOG}/{kept.version + 1:020}.json")
            if commit is None:
                break
            kept.version += 1
            for action in map(json.loads, commit.splitlines()):
                if "metaData" in action:
                    kept.meta = action["metaData"]
                if "remove" in action:
                    kept.adds.pop(action["remove"]["path"], None)
                if "add" in action:
                    kept.adds[action["add"]["path"]] = action["add"]
        return kept
