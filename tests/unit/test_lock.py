"""Tests that the lock file has the dependencies of its packages for every supported Python."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKED = {
    canonicalize_name(name)
    for name in re.findall(r"^([\w.-]+)==", Path("requirements.lock").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("python", ["3.11.0", "3.11.2", "3.11.9", "3.12.0", "3.13.0"])
def test_lock_contains_the_requirements_of_its_packages_for_each_python(python: str) -> None:
    environment: dict[str, str] = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "extra": "",
    }
    missing = {
        f"{name} needs {needed}"
        for name in LOCKED
        for needed in map(Requirement, _requires(name))
        if needed.marker is None or needed.marker.evaluate(environment)
        if canonicalize_name(needed.name) not in LOCKED
    }
    assert missing == set()


def _requires(name: str) -> list[str]:
    try:
        return metadata.distribution(name).requires or []
    except metadata.PackageNotFoundError:  # of another platform or Python
        return []
