"""Tests of a local Spark server as a process: pid file, start failures, tokens, jars."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from haproc.ring import runtime
from haproc.ring.process import DetachedProcess, free_port, start_time
from haproc.ring.spark import LocalSpark, SparkStartError

pytestmark = pytest.mark.spark


async def test_start_of_a_running_server_keeps_its_process(spark: LocalSpark) -> None:
    pid = spark.pid
    assert pid is not None
    again = LocalSpark(spark.name, spark.folder, spark.port, spark.token)
    await again.start(warm=False)
    assert again.pid == pid
    assert os.getsid(pid) == pid  # its own session: outlives whoever started it


@pytest.mark.thorough
async def test_start_of_a_warm_server_does_not_warm_it_again(spark: LocalSpark) -> None:
    progress_lines: list[str] = []
    again = LocalSpark(
        spark.name, spark.folder, spark.port, spark.token, progress=progress_lines.append
    )
    await again.start()
    assert progress_lines
    assert not [step for step in progress_lines if "warming" in step]


@pytest.mark.thorough
async def test_start_without_time_to_warm_up_serves_and_the_next_start_warms_up(
    spark: LocalSpark,
) -> None:
    progress_lines: list[str] = []
    again = LocalSpark(
        spark.name, spark.folder, spark.port, spark.token, progress=progress_lines.append
    )
    (spark.folder / "spark.warm").unlink()
    await again.start(timeout_s=3.0)  # it takes longer, warm or not
    assert [step for step in progress_lines if "not warm yet" in step]
    await again.start()
    assert (spark.folder / "spark.warm").exists()


def test_server_keeps_its_token_out_of_its_command_line_and_files(spark: LocalSpark) -> None:
    command_line = Path(f"/proc/{spark.pid}/cmdline").read_bytes()
    assert spark.token.encode() not in command_line
    assert spark.token not in (spark.folder / "spark.conf").read_text()


@pytest.mark.thorough
async def test_start_on_a_used_port_fails_with_the_end_of_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server = LocalSpark("taken", tmp_path, taken.getsockname()[1], "token")
        with pytest.raises(SparkStartError, match="ended while it started") as caught:
            await server.start(timeout_s=60)
    assert "Exception" in str(caught.value)
    assert server.pid is None


async def test_pid_file_of_another_process_is_never_signalled(tmp_path: Path) -> None:
    sleeper = await asyncio.create_subprocess_exec("sleep", "60")
    server = LocalSpark("other", tmp_path, free_port(), "token")
    (tmp_path / "spark.pid").write_text(json.dumps({"pid": sleeper.pid, "started": "1"}))
    assert server.pid is None
    assert not server.kill()
    await server.stop()
    assert sleeper.returncode is None
    sleeper.kill()
    await sleeper.wait()


async def test_process_that_ignores_sigterm_is_killed_after_the_grace_period(
    tmp_path: Path,
) -> None:
    process = DetachedProcess(tmp_path / "pid")
    command = ["sh", "-c", "trap '' TERM; echo trapped; while :; do sleep 0.1; done"]
    identity = process.start(
        command, folder=tmp_path, log=tmp_path / "log", environment=dict(os.environ)
    )
    async with asyncio.timeout(10):
        while not (tmp_path / "log").stat().st_size:  # noqa: ASYNC110 (no event to wait for)
            await asyncio.sleep(0.01)
    assert start_time(identity.pid) == identity.started
    await process.stop(grace_s=0.3)
    assert start_time(identity.pid) is None


def test_delta_jars_are_all_there_and_not_empty(spark: LocalSpark) -> None:
    jars = runtime.delta_jars()
    assert len(jars) == len(runtime.DELTA_JARS)
    assert all(jar.stat().st_size > 0 for jar in jars)
