"""Tests of the sandbox: its command line, the supervisor's last lines, refused configurations."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from haproc.config.load import load_text
from haproc.config.tree import ConfigError
from haproc.jobs.model import Outcome
from haproc.jobs.process import end_of, homes_of, sandboxed

FOLDER = Path("/srv/haproc/state/jobs/a/1-1")


def made(readable: list[str], hidden: str = "/srv/haproc/state", as_root: bool = False) -> str:
    paths = [Path(path) for path in readable]
    return " ".join(sandboxed("bwrap", ["python"], FOLDER, paths, [Path(hidden)], as_root))


def test_hidden_folder_below_a_shown_folder_is_covered() -> None:
    command = made(["/srv/haproc"])
    shown, covered, own = (
        command.index("--ro-bind-try /srv/haproc /srv/haproc"),
        command.index("--tmpfs /srv/haproc/state"),
        command.index(f"--bind {FOLDER} {FOLDER}"),
    )
    assert shown < covered < own < command.index("--remount-ro /srv/haproc/state")
    assert "--tmpfs /srv" not in made(["/opt/python"])


def test_every_folder_except_the_working_folder_is_read_only() -> None:
    command = made([])
    assert command.count("--bind ") == 2  # and /tmp, which is in it
    for path in ("/dev", "/proc", "/"):
        assert f"--remount-ro {path} " in command


def test_tmp_is_the_working_folders_unless_a_shown_folder_lies_below_it() -> None:
    assert f"--bind {FOLDER}/tmp /tmp" in made(["/opt/python"])
    assert "/tmp /tmp" not in made(["/tmp/python"])


def test_user_namespace_cannot_be_created_in_either_kind_of_sandbox() -> None:
    assert "--unshare-user --disable-userns" in made([])
    assert "--userns 3" in made([], as_root=True)  # the supervisor made it so
    assert all("--cap-drop ALL" in made([], as_root=each) for each in (True, False))


def test_interpreter_of_a_virtual_environment_includes_the_folders_of_its_base_interpreters(
    tmp_path: Path,
) -> None:
    real = tmp_path / "real" / "bin" / "python3.11"
    real.parent.mkdir(parents=True)
    real.touch()
    between = tmp_path / "between" / "bin" / "python3"
    between.parent.mkdir(parents=True)
    between.symlink_to(real)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    venv = tmp_path / "venv" / "bin" / "python"
    venv.symlink_to("../../between/bin/python3")
    assert homes_of(venv) == sorted(tmp_path / name for name in ("real", "between", "venv"))
    assert homes_of(Path("/bin/no-such-python")) == []  # never the whole host


ENDED = '{"ended": 0, "why": "%s", "cpu_s": %s}'


@pytest.mark.parametrize(
    ("lines", "outcome", "code"),
    [
        (['{"began": true}', '{"code": 0}', ENDED % ("", 1)], Outcome.SUCCESS, 0),
        (['{"began": true}', '{"code": 3}', ENDED % ("", 1)], Outcome.FAILED, 3),
        (['{"began": true}', '{"code": -24}', ENDED % ("", 9)], Outcome.LIMIT, -24),
        (['{"began": true}', '{"code": -9}', ENDED % ("", 9)], Outcome.LIMIT, -9),
        (['{"began": true}', '{"code": -9}', ENDED % ("", 1)], Outcome.FAILED, -9),
        (['{"began": true}', ENDED % ("disk", 1)], Outcome.LIMIT, -signal.SIGKILL),
        (['{"began": true}', ENDED % ("full", 1)], Outcome.LIMIT, -signal.SIGKILL),
        (['{"began": true}', ENDED % ("memory", 1)], Outcome.LIMIT, -signal.SIGKILL),
        (['{"began": true}', ENDED % ("asked", 1)], Outcome.LOST, -signal.SIGKILL),
        (["bwrap: no namespace", ENDED % ("", 0)], Outcome.ERROR, None),
        (['{"failed": "no such file"}', ENDED % ("", 0)], Outcome.ERROR, None),
        (['{"began": true}', "MemoryError", ENDED % ("", 0)], Outcome.FAILED, None),
        (['{"began": true}'], Outcome.LOST, None),
        ([], Outcome.LOST, None),
    ],
)
def test_last_lines_of_the_supervisor_give_the_programs_outcome(
    lines: list[str], outcome: Outcome, code: int | None
) -> None:
    end = end_of(lines, cpu_limit_s=5)
    assert (end.outcome, end.code) == (outcome, code)
    assert "no namespace" in end.why or lines[:1] != ["bwrap: no namespace"]


RING = """
ring: sales
log: sqlite:////tmp/log.db
secret: {env: RING_SECRET}
state_dir: /srv/state
clusters:
  - {name: a, listen: 127.0.0.1:1, peer: 127.0.0.1:2, connect: 127.0.0.1:3, spark: {url: "sc://s:4"}}
jobs: {enabled: true, %s}
"""


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ("isolation: user", "jobs.user: name the user"),
        ("isolation: none, user: etl", "jobs.user: programs run as HAProc itself"),
        ("isolation: landlock", "jobs.isolation"),
        ("confined: false", "jobs.confined"),
    ],
)
def test_contradictory_isolation_settings_are_refused(jobs: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_text(RING % jobs, Path("ring.yaml"), {"RING_SECRET": "x" * 32})
    for usable in ("isolation: user, user: etl", "user: etl", "isolation: none", "running_max: 1"):
        load_text(RING % usable, Path("ring.yaml"), {"RING_SECRET": "x" * 32})
