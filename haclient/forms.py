"""A job and its files as the body of one request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file to upload; ``part`` is what it is for: ``file``, ``pyFiles`` or ``files``."""

    part: str
    name: str
    data: bytes


def form(request: Mapping[str, Any], files: Sequence[JobFile]) -> tuple[str, bytes]:
    """Return a body's type and its bytes: JSON, or a form with the files."""
    told = json.dumps(dict(request)).encode()
    if not files:
        return "application/json", told
    digest = hashlib.sha256(told)
    for each in files:
        digest.update(each.data)
    boundary = (
        f"haclient-{digest.hexdigest()[:40]}"  # in no file, unless one was made to hold its hash
    )
    parts = [_part(boundary, 'name="request"', told)]
    for each in files:
        name = each.name.replace("\\", "_").replace('"', "_")
        parts.append(_part(boundary, f'name="{each.part}"; filename="{name}"', each.data))
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", body


def _part(boundary: str, disposition: str, data: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n"
    return f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + data + b"\r\n"
