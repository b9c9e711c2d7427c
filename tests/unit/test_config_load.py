"""The configuration: all problems are reported at once, each with its key's full path."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.load import ConfigError, load, load_text
from haproc.config.model import (
    Address,
    Config,
    Kafka,
    Membership,
    OnClusterDown,
    Timeouts,
    Trim,
    Writes,
)
from haproc.config.sections import Limits
from tests.certificates import Authority

CONF = Path(__file__).parents[2] / "conf"
ENVIRON = {
    "RING": "ring-secret-1",
    "TOKEN": "spark-token-1",
    "ETL": "etl-token-1",
    "BI": "bi-token-12",
    "SHORT": "short",
    "EMPTY": "",
    "SPACED": "two words and more",
}
CLUSTER = """
  - name: {name}
    listen: 127.0.0.1:{port}
    peer: 127.0.0.1:1{port}
    spark: {{url: "sc://127.0.0.1:2{port}", token: {{env: TOKEN}}}}
"""
TWO = "clusters:" + CLUSTER.format(name="a", port=8080) + CLUSTER.format(name="b", port=8081)
BASE = f"ring: demo\nlog: sqlite:log.db\nsecret: {{env: RING}}\n{TWO}"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, Path("/etc/haproc/ring.yaml"), ENVIRON)
    return [str(problem) for problem in caught.value.problems]


def only_problem(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def config(text: str) -> Config:
    return load_text(text, Path("/etc/haproc/ring.yaml"), ENVIRON)


def test_load_of_the_smallest_file_gives_the_defaults() -> None:
    loaded = config(BASE)
    assert loaded.ring == "demo"
    assert loaded.log == "sqlite:///etc/haproc/log.db"
    assert loaded.state_dir == Path("/etc/haproc/haproc-state")
    assert loaded.secret == "ring-secret-1"
    assert loaded.cluster("b").listen == Address("127.0.0.1", 8081)
    assert loaded.cluster("b").spark.token == "spark-token-1"
    assert (loaded.limits, loaded.timeouts, loaded.users) == (Limits(), Timeouts(), ())
    assert loaded.on_cluster_down is OnClusterDown.WAIT and not loaded.fanout_parallel


def test_load_of_every_key_reads_it() -> None:
    text = BASE + textwrap.dedent("""
        fanout: parallel
        on_cluster_down: exit
        state_dir: state
        paths: [/data, "s3a://b/in"]
        users: [{name: etl, token: {env: ETL}}, {name: bi, token: {env: BI}}]
        limits: {lanes: 2, results_kept_s: 60}
        timeouts: {statement_s: 10, probes_missed: 3}
    """)
    loaded = config(text)
    assert loaded.fanout_parallel and loaded.on_cluster_down is OnClusterDown.EXIT
    assert [user.name for user in loaded.users] == ["etl", "bi"]
    assert loaded.paths == ("/data", "s3a://b/in")
    assert loaded.limits == Limits(lanes=2, results_kept_s=60.0)
    assert loaded.timeouts == Timeouts(statement_s=10.0, probes_missed=3)
    assert isinstance(loaded.timeouts.statement_s, float)


@pytest.mark.parametrize(
    ("limits_text", "expected"),
    [
        (
            "operation_bytes_max: 16777216",
            Limits(operation_bytes_max=16 << 20, batch_arrow_bytes_max=16 << 20),
        ),
        (
            "look_ahead_bytes_max: 25165824",
            Limits(look_ahead_bytes_max=24 << 20, batch_arrow_bytes_max=24 << 20),
        ),
        (
            "window_records: 5000",
            Limits(window_records=5000, look_ahead_records_max=5000, batch_operations_max=5000),
        ),
        (
            "spooled_bytes_max: 4194304",
            Limits(
                spooled_bytes_max=4 << 20,
                staged_bytes_max=4 << 20,
                operation_bytes_max=4 << 20,
                batch_bytes_max=4 << 20,
                part_bytes_max=4 << 20,
                batch_arrow_bytes_max=4 << 20,
            ),
        ),
    ],
)
def test_configured_limit_bounds_the_limits_that_are_not_configured(
    limits_text: str, expected: Limits
) -> None:
    assert config(BASE + f"limits: {{{limits_text}}}").limits == expected


def test_contradicting_configured_limits_are_refused() -> None:
    limits_text = "{operation_bytes_max: 16777216, batch_arrow_bytes_max: 16777217}"
    advertised = only_problem(BASE + f"limits: {limits_text}")
    assert advertised.startswith(
        "limits.batch_arrow_bytes_max: 16777217 is more than limits.operation_"
    )


def test_loaded_secrets_are_not_shown() -> None:
    text = BASE + "users: [{name: etl, token: {env: ETL}}]"
    shown = repr(config(text))
    for secret in ("ring-secret-1", "spark-token-1", "etl-token-1"):
        assert secret not in shown


def test_load_of_a_secret_as_text_is_refused_and_not_repeated() -> None:
    found = only_problem(BASE.replace("{env: RING}", "hunter2-hunter2"))
    assert found.startswith("secret: a secret must not stand in this file")
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ("{env: NOWHERE}", "secret.env", "environment variable NOWHERE is not set"),
        ("{env: EMPTY}", "secret.env", "environment variable EMPTY is empty"),
        ("{env: SHORT}", "secret.env", "too short"),
        ("{env: SPACED}", "secret.env", "printable ASCII"),
        ("{file: nothing.txt}", "secret.file", "/etc/haproc/nothing.txt cannot be read"),
        (r'{file: "a\0"}', "secret.file", "can be no path"),
        ("{vault: x}", "secret", "not a secret"),
        ("{env: A, file: b}", "secret", "not a secret"),
        ("{env: 5}", "secret.env", "must be a name"),
        ("12345678", "secret", "not a secret"),
    ],
)
def test_load_of_a_missing_or_unfit_secret_is_reported_with_its_key(
    source: str, path: str, message: str
) -> None:
    found = only_problem(BASE.replace("{env: RING}", source))
    assert found.startswith(f"{path}: ") and message in found


def test_load_reads_a_secret_file_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("from-a-file\n")
    file = tmp_path / "ring.yaml"
    file.write_text(BASE.replace("{env: RING}", "{file: secret.txt}"))
    assert load(file, ENVIRON).secret == "from-a-file"


def test_load_of_an_unknown_key_suggests_a_similar_one() -> None:
    found = only_problem(BASE + "limits: {lane: 3}")
    assert re.fullmatch(r"limits\.lane: unknown key; did you mean lanes\? \(line \d+\)", found)


def test_load_of_a_duplicate_key_is_refused_with_its_path() -> None:
    assert only_problem(BASE + "ring: other\n").startswith("ring: given twice; the first is in")
    nested = BASE + "limits:\n  lanes: 1\n  lanes: 2\n"
    assert only_problem(nested).startswith("limits.lanes: given twice")


def test_load_reports_all_problems_at_once() -> None:
    text = BASE.replace("name: b", "nam: b") + "limits: {lanes: 0}\nfanout: both\nextra: 1\n"
    found = "\n".join(problems(text))
    for path in ("clusters[1].name: missing", "clusters[1].nam:", "limits.lanes:", "fanout:"):
        assert path in found
    assert "extra: unknown key" in found


@pytest.mark.parametrize(
    ("extra", "path", "message"),
    [
        ("limits: {lanes: true}", "limits.lanes", "expected a whole number, found true"),
        ("limits: {lanes: 2.5}", "limits.lanes", "a whole number, found the number 2.5"),
        ("limits: {lanes: '4'}", "limits.lanes", "a whole number, found the text '4'"),
        ("limits: {lanes: 17}", "limits.lanes", "must be at most 16"),
        ("limits: {lanes: -1}", "limits.lanes", "must be at least 1"),
        ("limits: [1]", "limits", "expected a mapping of keys, found a list"),
        ("limits:", "limits", "found nothing"),
        ("timeouts: {peer_s: yes}", "timeouts.peer_s", "expected a number, found true"),
        ("timeouts: {peer_s: 0}", "timeouts.peer_s", "must be above 0"),
        ("timeouts: {peer_s: .nan}", "timeouts.peer_s", "finite"),
        ("timeouts: {peer_s: .inf}", "timeouts.peer_s", "finite"),
        ("allow_anonymous: 1", "allow_anonymous", "expected true or false, found the number 1"),
        ("on_cluster_down: stop", "on_cluster_down", "must be wait or exit"),
        ("rules: no-such-rules.yaml", "rules", "cannot be read"),
        ("rules: 5", "rules", "expected text, found the number 5; put it in quotes"),
        ("users: {etl: 1}", "users", "expected a list, found a mapping"),
        ("state_dir: ''", "state_dir", "must not be empty"),
        (r'state_dir: "a\0b"', "state_dir", "can be no path"),
        ("state_dir: ~nobody-here/x", "state_dir", "can be no path"),
        (r'rules: "\0"', "rules", "can be no path"),
        ("limits: {batch_bytes_max: 100000000}", "limits.batch_bytes_max", "operation_bytes_max"),
        ("limits: {batch_arrow_bytes_max: 99999999}", "limits.batch_arrow_bytes_max", "operation_"),
        (
            "limits: {window_records: 10, look_ahead_records_max: 20}",
            "limits.look_ahead_records_max",
            "window_records (10)",
        ),
        ("timeouts: {retry_first_s: 9}", "timeouts.retry_first_s", "timeouts.retry_max_s (5)"),
        ("paths: [/data, data]", "paths[1]", "no absolute path"),
        ("paths: ['s3a://b/{x}']", "paths[0]", "no absolute path"),
        ("writes: {concern: most}", "writes.concern", "must be one or majority or all"),
        ("writes: {min_insync_clusters: 0}", "writes.min_insync_clusters", "at least 1"),
        ("writes: {min_insync_clusters: 3}", "writes.min_insync_clusters", "the ring has 2"),
        ("membership: {heartbeats: 9}", "membership.heartbeats", "unknown key"),
        ("membership: {missed_in_a_row: 0}", "membership.missed_in_a_row", "at least 1"),
        ("membership: {missed_in_a_row: 21}", "membership.missed_in_a_row", "membership.window_s"),
        ("membership: {received_in_a_row: 21}", "membership.received_in_a_row", "don't fit"),
        ("membership: {check_interval_s: 3}", "membership.check_interval_s", "window_s (2)"),
        ("membership: {report_interval_s: 0.05}", "membership.heartbeat_interval_s", "(0.05)"),
        ("membership: {window_s: 101}", "membership.window_s", "more than 1000 intervals"),
    ],
)
def test_load_of_a_wrong_value_is_reported_with_its_key(
    extra: str, path: str, message: str
) -> None:
    found = only_problem(BASE + extra)
    assert found.startswith(f"{path}: ") and message in found


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        ("name: b", "name: a", "clusters[1].name", "already used by clusters[0].name"),
        ("name: b", "name: 'b c'", "clusters[1].name", "letters, digits"),
        ("ring: demo", "ring: ../x", "ring", "letters, digits"),
        ("ring: demo", "ring: on", "ring", "expected text, found true"),
        ("listen: 127.0.0.1:8081", "listen: localhost:8080", "clusters[1].listen", "already used"),
        ("peer: 127.0.0.1:18081", "peer: 127.0.0.1:8080", "clusters[1].peer", "already used"),
        ("peer: 127.0.0.1:18081", "peer: 0.0.0.0:1", "clusters[1].peer", "cannot connect"),
        ("127.0.0.1:28081", "localhost:28080", "clusters[1].spark.url", "already used by"),
        ("listen: 127.0.0.1:8081", "listen: 8081", "clusters[1].listen", "expected text"),
        ("listen: 127.0.0.1:8081", "listen: h:70000", "clusters[1].listen", "1 to 65535"),
        ("listen: 127.0.0.1:8081", "listen: h:0", "clusters[1].listen", "1 to 65535"),
        ("sc://127.0.0.1:28081", "http://127.0.0.1", "clusters[1].spark.url", "is not sc://"),
        ("28081", "28081/;token=abc", "clusters[1].spark.url", "must not stand in the URL"),
        ("28081", "28081/;x=1", "clusters[1].spark.url", "unknown option 'x=1'"),
        ("sqlite:log.db", "'memory:'", "log", "one process only"),
        ("sqlite:log.db", "'redis:host'", "log", "unknown kind of log 'redis'"),
        ("sqlite:log.db", "'sqlite:'", "log", "names no file"),
        ("sqlite:log.db", "sqlite:~nobody-here/x", "log", "can be no path"),
        ("sqlite:log.db", "'sqlite://host/x'", "log", "names no file"),
        ("peer: 127.0.0.1:18081", "peer: other.example:1", "log", "one machine"),
        ("listen: 127.0.0.1:8081", "listen: 0.0.0.0:8081", "clusters[1].listen", "allow_anonym"),
    ],
)
def test_load_of_a_contradiction_is_reported_with_its_key(
    old: str, new: str, path: str, message: str
) -> None:
    found = problems(BASE.replace(old, new))
    assert any(f.startswith(f"{path}: ") and message in f for f in found), found


def test_load_of_an_open_listener_with_users_or_allow_anonymous_is_accepted() -> None:
    text = BASE.replace("listen: 127.0.0.1:8081", "listen: 0.0.0.0:8081")
    assert config(text + "users: [{name: etl, token: {env: ETL}}]").users
    assert config(text + "allow_anonymous: true").allow_anonymous


def test_advertised_url_is_the_client_url() -> None:
    advertised = BASE.replace(
        "listen: 127.0.0.1:8081", "listen: 127.0.0.1:8081\n    advertise: https://b.example.com/ha"
    )
    assert [config(advertised).client_url(name) for name in "ab"] == [
        "http://127.0.0.1:8080",
        "https://b.example.com/ha",
    ]


def test_door_on_all_addresses_is_advertised_at_the_host_of_its_peer_address() -> None:
    text = BASE.replace("listen: 127.0.0.1:8081", "listen: 0.0.0.0:8081")
    text = text.replace("peer: 127.0.0.1:18081", "peer: b.example.com:9000")
    text = text.replace("sqlite:log.db", "kafka://k:9092/demo") + "allow_anonymous: true\n"
    assert config(text).client_url("b") == "http://b.example.com:8081"


@pytest.mark.parametrize(
    "url",
    ["b:8080", "ftp://b", "http://", "http://0.0.0.0:80", "http://b:0", "http://b:x", "http://a b"],
)
def test_load_of_an_unusable_advertised_url_is_refused(url: str) -> None:
    text = BASE.replace("listen: 127.0.0.1:8081", f"listen: 127.0.0.1:8081\n    advertise: {url!r}")
    assert only_problem(text).startswith("clusters[1].advertise: ")


def test_load_of_the_same_advertised_url_for_two_clusters_is_refused() -> None:
    text = BASE.replace("listen:", "advertise: http://gate:80\n    listen:")
    assert "already used by clusters[0].advertise" in only_problem(text)


def test_load_of_storage_reads_prefixes_and_their_replacements() -> None:
    text = BASE.replace(
        "listen: 127.0.0.1:8081",
        'listen: 127.0.0.1:8081\n    storage: {"file:/data/b": s3a://bucket-b, "s3a://x": s3a://x}',
    )
    assert [cluster.storage for cluster in config(text).clusters] == [
        (),
        (("file:/data/b", "s3a://bucket-b"), ("s3a://x", "s3a://x")),
    ]


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ("{data: s3a://b}", "clusters[1].storage.data: 'data' is no absolute path"),
        ('{"/data": "s3a://b/*"}', "clusters[1].storage./data: 's3a://b/*' is no absolute path"),
        ('{"/data": "s3a://me:pw@b"}', "a password must not stand in a path"),
        ('{"/data": 5}', "clusters[1].storage./data: expected text"),
        ("[/data]", "clusters[1].storage: expected a mapping of prefixes of paths"),
    ],
)
def test_load_of_storage_with_an_invalid_path_is_refused(storage: str, reason: str) -> None:
    text = BASE.replace("listen: 127.0.0.1:8081", f"listen: 127.0.0.1:8081\n    storage: {storage}")
    assert reason in only_problem(text)


def test_load_of_users_with_allow_anonymous_or_a_shared_token_is_refused() -> None:
    users = "users: [{name: etl, token: {env: ETL}}, {name: bi, token: {env: %s}}]\n"
    assert "contradicts users" in only_problem(BASE + users % "BI" + "allow_anonymous: true")
    assert only_problem(BASE + users % "ETL").startswith("users[1].token: is the same as users[0]")
    assert only_problem(BASE + users % "RING").startswith("users[1].token: is the same as secret")


def test_load_of_an_ipv6_address_and_a_tls_url_reads_them() -> None:
    text = BASE.replace("listen: 127.0.0.1:8081", 'listen: "[::1]:9000"').replace(
        "sc://127.0.0.1:28081", "sc://spark.example.com/;use_ssl=true"
    )
    cluster = config(text).clusters[1]
    assert str(cluster.listen) == "[::1]:9000"
    assert (cluster.spark.host, cluster.spark.port, cluster.spark.tls) == (
        "spark.example.com",
        15002,
        True,
    )


def test_load_of_a_memory_log_for_one_cluster_is_accepted() -> None:
    one = "clusters:" + CLUSTER.format(name="a", port=8080)
    text = BASE.replace(TWO, one).replace("sqlite:log.db", "'memory:'")
    assert config(text).log == "memory:"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "ring: [", "{", "? [1]\n: 2", "a: &x [*x]", "a: !!python/object:os.x {}"],
)
def test_load_of_a_text_that_is_no_configuration_is_refused(text: str) -> None:
    assert problems(text)


def test_load_of_a_missing_file_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be used:\n  cannot be read"):
        load(tmp_path / "none.yaml", {})


def production(folder: Path, text: str) -> Config:
    """Load the production example with the files that it names."""
    for name in re.findall(r"/run/secrets/([a-z-]+)", text):
        (folder / name).write_text(f"{name}-secret")
    for name in re.findall(r"/etc/haproc/([a-z.-]+)", text):
        (folder / name).write_text("-")
    Authority(folder, "ring-ca").issue("door")
    text = text.replace("/run/secrets/", f"{folder}/").replace("/etc/haproc/", f"{folder}/")
    return load_text(text, CONF / "ring.production.yaml", {})


def test_example_configurations_load(tmp_path: Path) -> None:
    environ = {"HAPROC_SECRET": "ring-secret-1", "HAPROC_SPARK_TOKEN": "spark-token-1"}
    assert len(load(CONF / "ring.local.yaml", environ).clusters) == 3
    loaded = production(tmp_path, (CONF / "ring.production.yaml").read_text())
    assert loaded.clusters[0].spark.tls and len(loaded.users) == 2
    assert loaded.log.endswith(f"/{loaded.ring}") and loaded.kafka.security_protocol.tls
    assert loaded.peer_url("bern") == "https://haproc-bern.example.com:8090"
    assert loaded.kafka.sasl_password == "kafka-haproc-secret"


def test_production_example_shows_every_kafka_key(tmp_path: Path) -> None:
    text = (CONF / "ring.production.yaml").read_text()
    uncommented = re.sub(r"^  # (?=\w+: )", "  ", text, flags=re.MULTILINE)
    assert set(yaml.safe_load(uncommented)["kafka"]) == set(Kafka.__dataclass_fields__)
    assert production(tmp_path, uncommented).kafka.ssl_key_password == "haproc-key-secret"


@pytest.mark.parametrize("section", ["limits", "timeouts", "membership", "writes", "trim"])
def test_production_example_shows_every_key_of_a_section_with_its_default(section: str) -> None:
    text = (CONF / "ring.production.yaml").read_text()
    uncommented = re.sub(r"^  # (?=\w+: )", "  ", text, flags=re.MULTILINE)
    shown = yaml.safe_load(uncommented)[section]
    kinds = {
        "limits": Limits,
        "timeouts": Timeouts,
        "membership": Membership,
        "writes": Writes,
        "trim": Trim,
    }
    assert shown == dataclasses.asdict(kinds[section]())


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*Config.__dataclass_fields__, "fanout", "name", "spark", "env", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(_JUNK)
def test_load_of_any_yaml_succeeds_or_reports_problems(junk: object) -> None:
    try:
        load_text(yaml.safe_dump(junk), Path("/etc/ring.yaml"), ENVIRON)
    except ConfigError as error:
        assert error.problems
