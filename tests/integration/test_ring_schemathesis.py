"""Tests of a real HAProc against its OpenAPI document by Schemathesis, with a token of each role.

It makes requests from the document, valid and invalid ones. No answer may be an error of the
server, have a status or a body that the document does not name, or accept a request without a
token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from haproc.classify.rights import Role
from haproc.config.sections import digest_of
from haproc.ring.local import LocalRing
from tests.rig import SETTINGS, SPARK_SETTINGS
from tests.tools import environment
from tests.tools.environment import SCHEMATHESIS

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

DOCUMENT = Path(__file__).parents[2] / "haproc" / "doors" / "openapi.yaml"
TOKENS = {role: f"a-token-of-a-{role.value}" for role in (Role.READER, Role.WRITER, Role.OPERATOR)}
EXAMPLES = 40
"""For each operation with fields; this takes half a minute for a door."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
ENDLESS = "/ui/events"
"""The path whose answer never ends."""
OUT_OF_SERVICE = ("drain", "leave", "rebuild", "repair", "restore", "join", "skip", "backup")
"""Operators' commands that would take the ring out of service for the next request."""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """One cluster, and a user of each role."""
    users = [
        {"name": role.value, "token_hash": digest_of(token), "roles": [role.value]}
        for role, token in TOKENS.items()
    ]
    made = LocalRing.open_or_create(
        tmp_path_factory.mktemp("documented"),
        clusters=1,
        spark_settings=SPARK_SETTINGS,
        settings={**SETTINGS, "users": users},
    )
    try:
        asyncio.run(made.up())
        yield made
    finally:
        asyncio.run(made.down())


def test_schemathesis_is_installed() -> None:
    """Installing takes a minute the first time, which is too much for another test."""
    assert (environment.folder(SCHEMATHESIS) / "st").exists()


@pytest.mark.parametrize("role", TOKENS)
def test_answers_conform_to_the_openapi_document(
    ring: LocalRing, role: Role, tmp_path: Path
) -> None:
    operator = role is Role.OPERATOR
    url = ring.config.peer_url("a") if operator else ring.config.client_url("a")
    options = ["--url", url, "--header", f"Authorization:Bearer {TOKENS[role]}"]
    options += ["--include-tag", "operator door" if operator else "client door"]
    options += ["--exclude-path", ENDLESS]
    options += ["--exclude-path-regex", f"/({'|'.join(OUT_OF_SERVICE)})"]
    options += ["--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", "1"]
    options += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    program = ("run", str(DOCUMENT), *options)
    print(environment.run("", "st", *program, tools=SCHEMATHESIS, cwd=tmp_path))
