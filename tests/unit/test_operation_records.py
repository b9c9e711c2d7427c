"""Messages of the log: there and back, and the kept bytes of every kind.

A log outlives the version of HAProc that wrote it. The files in tests/golden/vN hold version N of
each kind of record. They are never written again: today's code must read them as what they meant,
and still writes the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import LogCorruptError, Record, decode, encode
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.config.model import Address
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.membership.roster import Member
from haproc.replicate.records.contents import Checksums, Skip, Verify
from haproc.replicate.records.failures import Failure
from haproc.replicate.records.fence import Fence
from haproc.replicate.records.members import Change, Roster
from haproc.replicate.records.operation import (
    SYNCHRONOUS,
    Claim,
    Decision,
    FailureReport,
    Message,
    Operation,
    Verdict,
    from_record,
    to_record,
)
from haproc.replicate.records.rows import (
    ComputedPlan,
    Filling,
    Part,
    Passed,
    QueryWrite,
    Rows,
    SessionRef,
    SpooledRows,
)
from haproc.replicate.records.words import Abandon, Able, Unable
from haproc.spark_error import Context, details

SAID = details(
    ["org.apache.spark.sql.AnalysisException", "java.lang.Exception"],
    {"relationName": "`flüge`", "searchPath": "[`a`]"},
    [
        Context(object_type="VIEW", object_name="v", start=3, stop=9, fragment="flüge"),
        Context(of_frame=True, call_site="job.py:7", fragment="select", summary="== DataFrame =="),
    ],
)
GOLDEN = Path(__file__).parents[1] / "golden"
ID = "2f1c6a5e9d3b4870a1b2c3d4e5f60718"
FAILURE = Failure("TABLE_OR_VIEW_ALREADY_EXISTS", "42P07", "Die Tabelle »flüge« gibt es schon 😀")
HEAD = "INSERT INTO flüge VALUES "
INSERT = Operation(
    id=ID,
    operation_class=OperationClass.ASYNCHRONOUS,
    kind=Kind.INSERT,
    origin="a",
    fingerprint="c0ffee",
    write=SqlText(f"{HEAD}(1, 'Zürich 😀'), (2, NULL)"),
    settings=Settings("main", "air", "Europe/Berlin", False, (("spark.sql.a", "1"), ("b", ""))),
    user="ada",
    reads=frozenset({"main.air.b", "main.air.a"}),
    writes=frozenset({"main.air.flüge"}),
    tables_known=True,
    insert=InsertShape(len(HEAD), 2, "int,string"),
    created_ms=1_790_000_000_123,
)
DDL = replace(
    INSERT,
    operation_class=OperationClass.SYNCHRONOUS_PARALLEL,
    kind=Kind.OTHER_DDL,
    write=SqlText("MSCK REPAIR TABLE flüge"),
    settings=Settings(),
    reads=frozenset(),
    writes=frozenset(),
    tables_known=False,
    insert=None,
)
A = Member("a", Address("host-a", 8090), "http://host-a:8080")
B = Member("b", Address("::1", 8091), "http://[::1]:8081")
C = Member("c", Address("10.0.0.3", 65_535), "https://zürich.example.com")
ROWS = pa.table({"n": pa.array([1, None], pa.int64()), "s": pa.array(["ü", "😀"])})
PLAN = bytes.fromhex(
    "122c122a0a1552130a11313820616c7320c39c626572736368c3a413220a0a066d61696e2e7510012802"
)
"""Stands for a plan; what is in one is nothing to the log."""
MESSAGES: dict[str, Message] = {
    "operation_sql": INSERT,
    "operation_unknown_tables": DDL,
    "operation_since": replace(INSERT, since=2**40, window=65_536),
    "operation_own_id": replace(INSERT, since=2**40, window=65_536, own_id=True),
    "operation_rests_on": replace(
        DDL,
        since=41,
        window=65_536,
        own_id=True,
        analyzed_to=2**40,
        rests_on=frozenset({"main.air.flüge", "main.air.a"}),
        redefines=None,
    ),
    "operation_redefines": replace(
        INSERT,
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
        analyzed_to=0,
        redefines=frozenset({"main.air.flüge"}),
    ),
    "operation_computed": replace(
        INSERT,
        write=QueryWrite("INSERT INTO flüge SELECT 'Zürich 😀', uuid()", 18, of_session=True),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_computed_in_session": replace(
        INSERT,
        write=QueryWrite(
            "INSERT INTO flüge SELECT * FROM v", 18, True, SessionRef("ann", "s-1", 3)
        ),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_computed_in_session_begun": replace(
        INSERT,
        write=QueryWrite(
            "INSERT INTO flüge SELECT * FROM v", 18, True, SessionRef("ann", "s-1", 3, "b-7f3e")
        ),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_plan": replace(
        INSERT,
        write=SparkPlan(PLAN),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
        analyzed_to=2**40,
        rests_on=frozenset({"main.air.flüge"}),
    ),
    "rows": Rows(41, ID, "b", 12, "INSERT INTO flüge VALUES (1, 'Zürich 😀')", 1),
    "rows_failure": Rows(41, ID, "b", 12, failure=FAILURE),
    "operation_computed_plan": replace(
        INSERT,
        write=ComputedPlan(b"relation", PLAN, SessionRef("ada", "s-1", 3)),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_computed_plan_begun": replace(
        INSERT,
        write=ComputedPlan(b"relation", PLAN, SessionRef("ada", "s-1", 3, "b-7f3e")),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_computed_plan_alone": replace(
        INSERT,
        write=ComputedPlan(b"relation", PLAN),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "operation_spooled": replace(
        INSERT,
        write=SpooledRows("c.s.t", b"no rows"),
        insert=None,
        since=41,
        window=65_536,
        own_id=True,
    ),
    "rows_filling": Rows(41, ID, "b", 12, "", 2, None, Filling(PLAN, b"rows", (), 4)),
    "rows_parts": Rows(41, ID, "b", 12, "", 2**40, None, Filling(PLAN, b"", (43, 2**40), 2**44)),
    "part": Part(41, ID, "b", 12, 1, 1_790_000_000_456, b"\x00rows"),
    "passed": Passed(41, ID, "b", 12, FAILURE),
    "decision_commit": Decision(41, ID, Verdict.COMMIT, "b", 12),
    "decision_reject": Decision(41, ID, Verdict.REJECT, "a", 7, FAILURE),
    "outcome": FailureReport(2**53 + 1, "c", 3, FAILURE),
    "claim": Claim("a", "a-7f3e"),
    "unable": Unable(41, ID, "b", 12, "OOM: für »flüge« reicht es nicht 😀"),
    "able": Able(41, ID, "b", 12),
    "abandon": Abandon(41, ID, "c", 13, 47, {"b": 44, "c": 46}, {"a": 7, "d": -1}, "b: OOM 😀"),
    "fence": Fence("job/4711"),
    "skip": Skip(41, ID, "c", 12, "Platte »c« ist kaputt 😀"),
    "verify": Verify("b"),
    "verify_trusted": Verify("b", "c"),
    "checksums": Checksums(
        43, "c", 12, {"main.air.flüge": "3:00ff:12ab", "main.air.b": "", "v": "view:77"}, True
    ),
    "join": Roster(Change.JOIN, "c", (A, B, C), 44, "a"),
    "leave": Roster(Change.LEAVE, "b", (A, C), 45, "a"),
    "members": Roster(Change.MEMBERS, "", (A,), -1, "a"),
    "checksums_error": Checksums(43, "a", 7, {}, error="die Tabellen lassen sich nicht auflisten"),
}
VERSIONS = {
    "operation_since": "v2",
    "verify_trusted": "v2",
    "operation_own_id": "v3",
    "operation_rests_on": "v3",
    "operation_redefines": "v3",
    "operation_computed": "v3",
    "operation_plan": "v4",
    "operation_computed_in_session": "v3",
    "operation_computed_in_session_begun": "v3",
    "operation_computed_plan_begun": "v4",
    "operation_computed_plan": "v4",
    "operation_computed_plan_alone": "v4",
    "operation_spooled": "v4",
    "rows_filling": "v2",
    "rows_parts": "v2",
}
"""Those that are not of version 1."""
NO_MESSAGES = {"record.bin", "log.db.xz", "log_tables.json"}
"""Kept for other tests."""


def golden(name: str) -> bytes:
    return (GOLDEN / VERSIONS.get(name, "v1") / f"{name}.bin").read_bytes()


def test_every_kept_file_has_a_meaning() -> None:
    kept = {file.name for file in GOLDEN.glob("v*/*")} - NO_MESSAGES
    assert kept == {f"{name}.bin" for name in (*MESSAGES, "operation_rows")}


@pytest.mark.parametrize("name", MESSAGES)
def test_kept_bytes_are_read_as_the_message(name: str) -> None:
    assert from_record(decode(golden(name))) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_message_is_still_written_as_the_kept_bytes(name: str) -> None:
    assert encode(to_record(MESSAGES[name])) == golden(name)


def test_kept_rows_are_read_and_written_again() -> None:
    operation = from_record(decode(golden("operation_rows")))
    assert isinstance(operation, Operation) and isinstance(operation.write, ArrowRows)
    assert operation.kind is Kind.ROWS
    assert operation.write.table == "main.air.flüge"
    with pa.ipc.open_stream(operation.write.rows) as reader:
        assert reader.read_all() == ROWS
    assert operation == replace(INSERT, kind=Kind.ROWS, insert=None, write=operation.write)
    assert encode(to_record(operation)) == golden("operation_rows")


# -- any message -------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.integers(0, 2**63 - 1)
failures = st.builds(Failure, text, text, text)
operations = (
    st.builds(
        Operation,
        id=text,
        operation_class=st.sampled_from([*SYNCHRONOUS, OperationClass.ASYNCHRONOUS]),
        kind=st.sampled_from(Kind),
        origin=text,
        fingerprint=text,
        write=st.builds(SqlText, text) | st.builds(ArrowRows, text, st.binary()),
        settings=st.builds(
            Settings,
            catalog=text,
            schema=text,
            time_zone=text,
            ansi=st.booleans(),
            confs=st.lists(st.tuples(text, text), max_size=3).map(tuple),
        ),
        user=text,
        reads=st.frozensets(text, max_size=3),
        writes=st.frozensets(text, max_size=3),
        tables_known=st.booleans(),
        insert=st.none() | st.builds(InsertShape, offsets, offsets, text),
        created_ms=offsets,
    )
    | st.builds(
        Operation,
        id=text,
        operation_class=st.just(OperationClass.ASYNCHRONOUS),
        kind=st.just(Kind.INSERT),
        origin=text,
        fingerprint=text,
        write=st.builds(SqlText, text),
        since=offsets,
        window=offsets,
        own_id=st.booleans(),
    )
    | st.builds(
        Operation,
        id=text,
        operation_class=st.just(OperationClass.ASYNCHRONOUS),
        kind=st.just(Kind.INSERT),
        origin=text,
        fingerprint=text,
        write=st.builds(SqlText, text) | st.builds(SparkPlan, st.binary()),
        user=text,
        since=offsets,
        window=offsets,
        own_id=st.just(True),
        analyzed_to=offsets,
        rests_on=st.frozensets(text, max_size=3),
        redefines=st.none() | st.frozensets(text, max_size=3),
    )
)
messages = st.one_of(
    operations,
    st.builds(
        Decision, offsets, text, st.sampled_from(Verdict), text, offsets, st.none() | failures
    ),
    st.builds(FailureReport, offsets, text, offsets, failures),
    st.builds(Claim, text, text),
    st.builds(Fence, text),
    st.builds(
        Roster,
        change=st.sampled_from(Change),
        cluster=text,
        members=st.lists(
            st.builds(Member, text, st.builds(Address, text, st.integers(1, 65_535)), text),
            max_size=4,
            unique_by=lambda member: member.name,
        ).map(tuple),
        replaces=st.integers(-1, 2**63 - 1),
        by=text,
    ),
)


@given(messages)
def test_message_through_bytes_is_equal(message: Message) -> None:
    assert from_record(decode(encode(to_record(message)))) == message


@given(operations)
def test_record_key_is_the_request_id(operation: Operation) -> None:
    assert to_record(operation).key == operation.id


@pytest.mark.parametrize("name", [*MESSAGES, "operation_rows"])
def test_from_record_header_that_is_not_known_is_passed_over(name: str) -> None:
    record = decode(golden(name))
    newer = replace(record, headers={**record.headers, "of_a_later_version": [1]})
    assert from_record(newer) == from_record(record)


def test_from_record_later_version_of_a_kind_says_to_upgrade() -> None:
    record = decode(golden("operation_since"))
    with pytest.raises(LogCorruptError, match=r"'operation.5' is not known .* upgrade"):
        from_record(replace(record, kind="operation.5"))


def test_from_record_form_that_is_not_known_says_to_upgrade() -> None:
    record = decode(golden("operation_plan"))
    with pytest.raises(LogCorruptError, match=r"form 'song' is not known .* upgrade"):
        from_record(replace(record, headers={**record.headers, "form": "song"}))


def test_from_record_unknown_kind_says_to_upgrade() -> None:
    with pytest.raises(LogCorruptError, match=r"'snapshot' is not known .* upgrade"):
        from_record(Record("snapshot"))


@pytest.mark.parametrize("name", [*MESSAGES, "operation_rows"])
def test_from_record_missing_header_is_corrupt(name: str) -> None:
    record = decode(golden(name))
    optional = {"session_begun", *(["session"] if "in_session" in name else [])}
    for header in record.headers.keys() - {"insert", "rows_table", "query"} - optional:
        headers = {key: value for key, value in record.headers.items() if key != header}
        with pytest.raises(LogCorruptError, match=f"a {record.kind} record cannot be read"):
            from_record(replace(record, headers=headers))


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("operation_sql", "class", "eventually"),
        ("operation_sql", "kind", "dance"),
        ("operation_sql", "settings", ["main"]),
        ("operation_sql", "insert", [1]),
        ("operation_sql", "reads", None),
        ("operation_rests_on", "rests_on", [1]),
        ("operation_rests_on", "rests_on", ["1", []]),
        ("operation_redefines", "redefines", "everything"),
        ("decision_commit", "verdict", "perhaps"),
        ("decision_reject", "failure", ["one"]),
        ("outcome", "failure", None),
        ("skip", "reason", None),
        ("skip", "offset", "first"),
        ("verify", "by", 7),
        ("verify_trusted", "trusted", 7),
        ("checksums", "marked", "yes"),
        ("join", "replaces", None),
        ("join", "replaces", True),
        ("join", "members", [["a", "host", 1]]),
        ("join", "members", [["a", "host", "1", "http://a"]]),
        ("join", "members", [["a", "h", 1, "http://a"], ["a", "h", 1, "http://a"]]),
        ("leave", "cluster", None),
        ("checksums", "marker", True),
    ],
)
def test_from_record_impossible_header_is_corrupt(name: str, header: str, value: object) -> None:
    record = decode(golden(name))
    with pytest.raises(LogCorruptError, match="cannot be read"):
        from_record(replace(record, headers={**record.headers, header: value}))  # type: ignore[dict-item]


@pytest.mark.parametrize("payload", [b"", b"[1]", b"{", b'{"t": 1}', b"\xff"])
def test_from_record_checksums_that_are_none_are_corrupt(payload: bytes) -> None:
    with pytest.raises(LogCorruptError, match="cannot be read"):
        from_record(replace(decode(golden("checksums")), payload=payload))


def test_from_record_sql_that_is_no_text_is_corrupt() -> None:
    with pytest.raises(LogCorruptError, match="cannot be read"):
        from_record(replace(decode(golden("operation_sql")), payload=b"\xff"))


# -- what an operation says of itself ----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "synchronous", "exclusive"),
    [
        ({}, False, False),
        ({"kind": Kind.MERGE}, False, False),
        ({"tables_known": False}, False, True),
        ({"kind": Kind.CREATE_TABLE}, False, True),
        ({"kind": Kind.RESTORE}, False, True),
        ({"operation_class": OperationClass.SYNCHRONOUS}, True, True),
        ({"operation_class": OperationClass.SYNCHRONOUS_PARALLEL}, True, True),
    ],
)
def test_operation_is_exclusive_where_its_tables_do_not_say_all(
    change: dict[str, object], synchronous: bool, exclusive: bool
) -> None:
    operation = replace(INSERT, **change)  # type: ignore[arg-type]
    assert (operation.synchronous, operation.exclusive) == (synchronous, exclusive)


def test_operation_size_is_that_of_its_write() -> None:
    assert DDL.size_bytes == len("MSCK REPAIR TABLE flüge")
    assert replace(DDL, write=ArrowRows("x", b"1234567")).size_bytes == 7
    assert replace(DDL, write=SparkPlan(b"1234567")).size_bytes == 7


@pytest.mark.parametrize(
    "message",
    [
        Decision(7, ID, Verdict.REJECT, "a", 3, replace(FAILURE, details=SAID)),
        FailureReport(7, "a", 3, replace(FAILURE, details=SAID)),
        Rows(7, ID, "a", 3, failure=replace(FAILURE, details=SAID)),
        Passed(7, ID, "a", 3, replace(FAILURE, details=SAID)),
    ],
)
def test_what_spark_said_of_an_error_stands_beside_what_older_readers_read(
    message: Decision | FailureReport | Rows | Passed,
) -> None:
    record = decode(encode(to_record(message)))
    assert from_record(record) == message
    failure = record.headers["failure"]
    assert failure == [FAILURE.error_class, FAILURE.sqlstate, FAILURE.message]
    older = {name: value for name, value in record.headers.items() if name != "failure_details"}
    read = from_record(replace(record, headers=older))
    assert read == replace(message, failure=FAILURE)


def test_what_spark_said_of_an_error_is_bounded() -> None:
    context = Context(fragment="f" * 9_000, summary="s" * 9_000)
    said = details(
        ["c" * 9_000] * 99,
        {f"{number}" * 3_000: "p" * 9_000 for number in range(99)},
        [context] * 9,
    )
    record = encode(to_record(FailureReport(7, "a", 3, replace(FAILURE, details=said))))
    assert len(record) < 40_000
