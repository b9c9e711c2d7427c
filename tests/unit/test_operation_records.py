"""Messages of the log: there and back, and the kept bytes of every kind.

A log outlives the version of HAProc that wrote it. The files in tests/golden/records are never
written again: today's code must read them as what they meant, and still writes the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import LogCorruptError, Record, decode, encode
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.config.model import Address
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.membership.peers import Member
from haproc.replicate.records.contents import Fence
from haproc.replicate.records.members import Change, Roster
from haproc.replicate.records.operation import (
    SYNCHRONOUS,
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Message,
    Operation,
    from_record,
    to_record,
)
from haproc.replicate.records.rows import (
    ApplicationFailure,
    Passed,
    Rows,
)
from haproc.spark_error import Context, details
from tests.unit.kept_records import DDL, FAILURE, GOLDEN, ID, INSERT, MESSAGES, SAID, kept


def golden(name: str) -> bytes:
    return kept(name).read_bytes()


def test_every_kept_file_has_a_meaning() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{name}.bin" for name in MESSAGES}


@pytest.mark.parametrize("name", MESSAGES)
def test_kept_bytes_are_read_as_the_message(name: str) -> None:
    assert from_record(decode(golden(name))) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_message_is_still_written_as_the_kept_bytes(name: str) -> None:
    assert encode(to_record(MESSAGES[name])) == golden(name)


# -- any message -------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.integers(0, 2**63 - 1)
failures = st.builds(ApplicationFailure, text, text, text)
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
        analyzed_to=offsets,
        rests_on=st.frozensets(text, max_size=3),
        redefines=st.none() | st.frozensets(text, max_size=3),
    )
)
messages = st.one_of(
    operations,
    st.builds(
        Decision, offsets, text, st.sampled_from(DecisionKind), text, offsets, st.none() | failures
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


@pytest.mark.parametrize("name", MESSAGES)
def test_from_record_header_that_is_not_known_is_passed_over(name: str) -> None:
    record = decode(golden(name))
    newer = replace(record, headers={**record.headers, "of_a_later_version": [1]})
    assert from_record(newer) == from_record(record)


def test_from_record_later_version_of_a_kind_says_to_upgrade() -> None:
    record = decode(golden("operation_since"))
    with pytest.raises(LogCorruptError, match=r"'operation.2' is not known .* upgrade"):
        from_record(replace(record, kind="operation.2"))


def test_from_record_form_that_is_not_known_says_to_upgrade() -> None:
    record = decode(golden("operation_plan"))
    with pytest.raises(LogCorruptError, match=r"form 'song' is not known .* upgrade"):
        from_record(replace(record, headers={**record.headers, "form": "song"}))


def test_from_record_unknown_kind_says_to_upgrade() -> None:
    with pytest.raises(LogCorruptError, match=r"'snapshot' is not known .* upgrade"):
        from_record(Record("snapshot"))


@pytest.mark.parametrize("name", MESSAGES)
def test_from_record_missing_header_is_corrupt(name: str) -> None:
    record = decode(golden(name))
    optional = {
        "session",
        "form",
        "query_confs",
        "plan_bytes",
        "apply_budget_s",
        "wish",
        "done",
        "revoked",
    }
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
        ("revoke", "who", None),
        ("unable_revoke", "wish", "first"),
        ("operation_budget", "apply_budget_s", "soon"),
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
        Decision(7, ID, DecisionKind.REJECT, "a", 3, replace(FAILURE, details=SAID)),
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
