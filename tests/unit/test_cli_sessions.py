"""``haproc sessions`` against an operator door."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from haproc.cli import clients
from haproc.cli.main import _parser
from haproc.cli.queue import Asker, AskError
from haproc.config.model import Address, Config
from haproc.sessions.journal import SqlEntry
from tests.unit.door_rig import door
from tests.unit.session_rig import Ring


def _options(config: Config, *arguments: str) -> argparse.Namespace:
    options = _parser().parse_args(["sessions", *arguments, "--config", "ring.yaml"])
    options.ring = config
    return options


async def test_sessions_are_listed_and_closed_by_any_haproc_that_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = Ring().member("b")
    session = await member.sessions.enter("ann", "s1", create=True)
    await member.sessions.record(session, SqlEntry("CREATE TEMPORARY VIEW v AS SELECT 1"))
    async with door(tmp_path, operator=True, sessions=member.listing) as rig:
        away, here = rig.config.clusters
        here = replace(here, peer=Address("127.0.0.1", rig.listener.port))
        config = replace(rig.config, clusters=(away, here))
        async with Asker(config) as asker:
            assert await clients.list_sessions(asker, _options(config, "list")) == 0
            shown = capsys.readouterr().out.splitlines()
            assert shown[0].split() == [
                "USER",
                "SESSION",
                "HAPROC",
                "STEPS",
                "BYTES",
                "ADOPTED",
                "USED",
            ]
            assert shown[1].split()[:4] == ["ann", "s1", "b", "1"]
            await clients.list_sessions(asker, _options(config, "list", "--json"))
            assert json.loads(capsys.readouterr().out)["total"] == 1
            close = _options(config, "close", "s1", "--user", "ann")
            assert await clients.close(asker, close) == 0
            with pytest.raises(AskError, match="no open session"):
                await clients.close(asker, close)
            with pytest.raises(AskError):
                await clients.close(asker, _options(config, "close", "s1", "--cluster", away.name))
