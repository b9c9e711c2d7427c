"""The OpenAPI document of both listeners: `openapi.yaml`, served as JSON."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import yaml

from haproc import __version__


@functools.cache
def document_json() -> bytes:
    """Return the document as JSON, with the version of this HAProc."""
    # libyaml reads it in a tenth of a second, Python's own reader in most of one.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(Path(__file__).with_name("openapi.yaml").read_bytes(), loader)
    document["info"]["version"] = __version__
    return json.dumps(document, ensure_ascii=False).encode()
