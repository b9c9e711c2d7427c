"""The OpenAPI document of both listeners."""

from __future__ import annotations

import functools
import json
from typing import Any

from haproc import __version__


def document() -> dict[str, Any]:
    """Return the document as data."""
    return {"openapi": "3.1.0", "info": {"title": "HAProc", "version": __version__}, "paths": {}}


@functools.cache
def document_json() -> bytes:
    """Return the document as JSON."""
    return json.dumps(document()).encode()
