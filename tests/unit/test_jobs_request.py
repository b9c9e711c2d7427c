"""The fields of Livy's request that a job uses, and those that are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haproc.config.jobs import Jobs, UnknownFields
from haproc.failure import ErrorClass, RequestError
from haproc.jobs.model import FileRole, Job, environment, remote_url, ring_variables
from haproc.jobs.request import (
    PROGRAM_BYTES_MAX,
    Upload,
    check_program,
    memory_bytes,
    read_files,
    submission,
    wanted,
)

JOBS = Jobs(enabled=True, environment=("CITY",))
CODE: dict[str, Any] = {"code": "print(1)"}


def refusal(body: dict[str, Any], *uploads: Upload) -> RequestError:
    with pytest.raises(RequestError) as caught:
        want = wanted(body, uploads, "ann", JOBS)
        for each in want.uploads:
            check_program(each)
        submission(want.job, want.uploads, "r")
    return caught.value


def test_request_of_livy_is_read_into_a_job() -> None:
    conf = {
        "spark.sql.shuffle.partitions": 4,
        "haproc.restart": "3",
        "haproc.consistency": "linearizable",
        "spark.yarn.appMasterEnv.CITY": "Bern",
        "haproc.wall_s": 60,
    }
    body = {
        "file": "etl/daily.py",
        "pyFiles": ["lib.zip"],
        "args": ["a", "b"],
        "driverMemory": "512m",
        "name": "daily",
        "proxyUser": "ann",
        "conf": conf,
        "jars": [],
        "queue": None,
    }
    want = wanted(body, (), "ann", JOBS)
    assert want.paths == ((FileRole.PROGRAM, "etl/daily.py"), (FileRole.MODULE, "lib.zip"))
    assert want.job.limits.memory_bytes == 512 << 20 and want.job.limits.wall_s == 60
    assert want.job.restarts == 3 and want.job.args == ("a", "b") and want.job.name == "daily"
    assert want.job.confs == (("spark.sql.shuffle.partitions", "4"),)
    assert want.job.options == (("haproc.consistency", "linearizable"),)
    assert want.job.environment == (("CITY", "Bern"),)


@pytest.mark.parametrize(
    "more",
    [
        {"className": "org.example.Main"},
        {"jars": ["x.jar"]},
        {"archives": ["x.zip"]},
        {"executorMemory": "1g"},
        {"numExecutors": 2},
        {"driverCores": 2},
        {"queue": "q"},
        {"proxyUser": "bob"},
        {"conf": {"spark.master": "local[2]"}},
        {"conf": {"spark.jars": "x.jar"}},
        {"conf": {"spark.executor.memory": "1g"}},
        {"conf": {"haproc.env.LD_PRELOAD": "x"}},
    ],
)
def test_unsupported_field_is_refused_by_name(more: dict[str, Any]) -> None:
    error = refusal({**CODE, **more})
    assert error.error_class == ErrorClass.JOB_FIELD
    [(name, value)] = more.items()
    assert (next(iter(value)) if name == "conf" else name) in error.message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**CODE, "file": "x.py"},
        {**CODE, "args": [1]},
        {**CODE, "conf": {"haproc.restart": "101"}},
        {**CODE, "conf": {"haproc.restart": "-1"}},
        {**CODE, "conf": {"haproc.restart": "000000000101"}},
        {**CODE, "conf": {"haproc.restart": "000000000" + "9" * 5_000}},
        {**CODE, "conf": {"haproc.cpu_s": 1e9}},
        {**CODE, "conf": {"haproc.consistency": "any;token=x"}},
        {**CODE, "driverMemory": "9g"},
        {**CODE, "driverMemory": "much"},
        {**CODE, "args": ["x" * 70_000]},
        {**CODE, "requestId": "no spaces"},
        {"code": "def"},
        {"code": "-" * 100_000 + "1"},
        {**CODE, "args": ["\ud800"]},
        {**CODE, "name": "\ud800"},
        {**CODE, "conf": {"haproc.env.CITY": "a\0b"}},
    ],
)
def test_invalid_request_is_refused(body: dict[str, Any]) -> None:
    assert refusal(body).error_class == ErrorClass.BAD_REQUEST


@pytest.mark.parametrize(
    "line",
    [
        "SparkSession.builder.master('local').getOrCreate()",
        "SparkSession.builder.appName('x').master('local[*]')",
    ],
)
def test_program_that_sets_a_spark_master_is_refused_with_the_line(line: str) -> None:
    error = refusal({"code": f"from pyspark.sql import SparkSession\nspark = {line}\n"})
    assert error.error_class == ErrorClass.JOB_MASTER and "line 2" in error.message


def test_program_that_is_too_long_to_be_parsed_is_refused() -> None:
    assert refusal({"code": "#" * (PROGRAM_BYTES_MAX + 1)}).error_class == ErrorClass.JOB_FIELD


@pytest.mark.parametrize("name", ["tmp", "modules"])
def test_file_with_the_name_of_a_jobs_folder_is_refused(name: str) -> None:
    assert refusal(CODE, Upload(FileRole.DATA, name, b"")).error_class == ErrorClass.BAD_REQUEST


@pytest.mark.parametrize("path", ["//[x", "http://["])
def test_path_that_is_no_valid_url_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read_files([(FileRole.PROGRAM, path)], [tmp_path], 1)
    assert caught.value.error_class == ErrorClass.JOB_FILE


def test_program_that_calls_another_method_named_master_is_accepted() -> None:
    want = wanted({"code": "key.master('x')"}, (), "ann", JOBS)
    assert submission(want.job, want.uploads, "r").restarts == 0


def test_upload_is_the_program_and_a_wrong_or_repeated_name_is_refused() -> None:
    upload = Upload(FileRole.PROGRAM, "p.py", b"1")
    assert wanted({}, [upload], "ann", JOBS).uploads == (upload,)
    assert refusal({}, Upload(FileRole.PROGRAM, "../p.py", b"1"))
    assert refusal({}, Upload(FileRole.PROGRAM, "p.jar", b"1"))
    assert refusal(CODE, Upload(FileRole.DATA, "a", b"1"), Upload(FileRole.DATA, "a", b"2"))


def test_fingerprint_depends_on_the_content_of_the_request() -> None:
    def fingerprint(**more: Any) -> str:
        want = wanted({**CODE, **more}, (), "ann", JOBS)
        return submission(want.job, want.uploads, "r").fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(args=["x"]), fingerprint(code="print(2)")}) == 3


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("2GB", 2 << 30), ("64", 64 << 20)]
)
def test_memory_size_is_parsed_as_spark_parses_it(text: str, size: int) -> None:
    assert memory_bytes(text) == size


# -- folders -----------------------------------------------------------------------------------


def read(folder: Path, path: str, bytes_max: int = 100) -> bytes:
    return read_files([(FileRole.PROGRAM, path)], [folder], bytes_max)[0].data


def test_file_is_read_from_an_allowed_folder_only(tmp_path: Path) -> None:
    allowed = tmp_path / "jobs"
    (allowed / "etl").mkdir(parents=True)
    (allowed / "etl" / "p.py").write_text("1")
    (tmp_path / "secret.py").write_text("2")
    (allowed / "link.py").symlink_to(tmp_path / "secret.py")
    for path in ("etl/p.py", f"{allowed}/etl/p.py", f"file://{allowed}/etl/p.py"):
        assert read(allowed, path) == b"1"
    outside = ("../secret.py", str(tmp_path / "secret.py"), "link.py", "etl", "s3://b/p.py", "no")
    for path in outside:
        with pytest.raises(RequestError) as caught:
            read(allowed, path)
        assert caught.value.error_class == ErrorClass.JOB_FILE
    with pytest.raises(RequestError) as caught:
        read(allowed, "etl/p.py", 0)
    assert caught.value.error_class == ErrorClass.TOO_LARGE


# -- what the program finds --------------------------------------------------------------------


def test_environment_contains_only_variables_for_the_program() -> None:
    uploads = [Upload(FileRole.MODULE, "lib.zip", b""), Upload(FileRole.MODULE, "m.py", b"")]
    want = wanted({**CODE, "conf": {"haproc.env.CITY": "Bern"}}, uploads, "ann", JOBS)
    submitted = submission(want.job, want.uploads, "r")
    found = environment(
        Job(7, submitted),
        2,
        Path("/w"),
        ring_variables(9, ["http://a:1", "http://b:2"], "t", (), 41),
        {"ZONE": "1"},
        Path("/opt/python/bin/python"),
    )
    assert (found["HAPROC_JOB_ID"], found["HAPROC_JOB_ATTEMPT"]) == ("7", "2")
    assert (found["CITY"], found["ZONE"]) == ("Bern", "1")
    assert found["SPARK_REMOTE"] == "sc://localhost:9/;token=t;haproc-after_offset=41"
    assert found["HACLIENT_AFTER_OFFSET"] == "41"
    assert (found["HACLIENT_SERVERS"], found["HACLIENT_TOKEN"]) == ("http://a:1,http://b:2", "t")
    assert found["PYTHONPATH"] == "/w/modules:/w/modules/lib.zip"
    assert not {name for name in found if "SECRET" in name or "JAVA" in name}


def test_url_of_the_ring_contains_the_token_and_the_options() -> None:
    url = remote_url(1234, "t", [("haproc.write_concern", "all")])
    assert url == "sc://localhost:1234/;token=t;haproc-write_concern=all"


LENIENT = Jobs(enabled=True, unknown_fields=UnknownFields.IGNORE, memory_bytes_max=1 << 30)
OF_A_CLUSTER: dict[str, Any] = {
    "executorMemory": "4g",
    "executorCores": 2,
    "numExecutors": 8,
    "driverCores": 2,
    "driverMemory": "8g",
    "queue": "etl",
    "ttl": "1h",
    "conf": {
        "spark.executor.memoryOverhead": "1g",
        "spark.submit.deployMode": "cluster",
        "spark.sql.ansi.enabled": "true",
    },
}


def test_cluster_fields_of_a_request_are_refused_or_ignored_as_configured() -> None:
    for field in ("executorMemory", "ttl"):
        error = refusal({**CODE, field: OF_A_CLUSTER[field]})
        assert error.error_class is ErrorClass.JOB_FIELD and field in str(error)
    want = wanted({**CODE, **OF_A_CLUSTER}, (), "ann", LENIENT)
    assert set(want.ignored) == {
        *("executorMemory", "executorCores", "numExecutors", "driverCores", "driverMemory"),
        *("queue", "ttl", "spark.executor.memoryOverhead", "spark.submit.deployMode"),
    }
    assert want.job.limits.memory_bytes == 1 << 30
    assert want.job.confs == (("spark.sql.ansi.enabled", "true"),)


@pytest.mark.parametrize(
    "more",
    [
        {"className": "org.example.Main"},
        {"jars": ["x.jar"]},
        {"proxyUser": "bob"},
        {"driverMemory": "much"},
        {"conf": {"spark.master": "yarn"}},
        {"conf": {"spark.jars.packages": "a:b:1"}},
        {"conf": {"haproc.restarts": "3"}},
        {"conf": {"haproc.env.LD_PRELOAD": "x"}},
    ],
)
def test_field_that_would_change_the_programs_meaning_is_never_ignored(
    more: dict[str, Any],
) -> None:
    with pytest.raises(RequestError):
        wanted({**CODE, **more}, (), "ann", LENIENT)
