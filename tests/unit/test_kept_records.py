"""Tests of the log's messages: encoding and decoding, and the kept bytes of every kind.

A log outlives the version of HAProc that wrote it. The files in tests/golden/records are never
written again: today's code must read them with their old meaning, and must still write the same.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import LogCorruptError, UnknownVersionError, decode, encode
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.config.model import Address
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.membership.peers import Member
from haproc.replicate.records.control import Change, Fence, Roster
from haproc.replicate.records.operation import (
    KINDS,
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
    Write,
)
from haproc.sessions.journal import Kept
from haproc.spark_error import Context, details
from tests.unit.kept_records import (
    DDL,
    DETAILS,
    FAILURE,
    GOLDEN,
    ID,
    INSERT,
    JOBS,
    MESSAGES,
    SESSIONS,
    STORED,
    kept,
    kinds_of,
)

KEPT = MESSAGES | STORED


def golden(name: str) -> bytes:
    return kept(name).read_bytes()


def test_every_kept_file_belongs_to_a_message() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{name}.bin" for name in KEPT}


@pytest.mark.parametrize("name", KEPT)
def test_kept_bytes_are_read_as_the_message(name: str) -> None:
    assert kinds_of(name).from_bytes(golden(name)) == KEPT[name]


@pytest.mark.parametrize("name", KEPT)
def test_message_is_still_written_as_the_kept_bytes(name: str) -> None:
    assert kinds_of(name).to_bytes(KEPT[name]) == golden(name)


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
def test_message_encoded_and_decoded_is_equal(message: Message) -> None:
    assert from_record(decode(encode(to_record(message)))) == message


def fields_of(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(decode(golden(name)).payload)
    return fields


def read(name: str, fields: object) -> object:
    """Return what is read from a record of a kept one's kind with other fields."""
    record = replace(decode(golden(name)), payload=msgspec.msgpack.encode(fields))
    return kinds_of(name).message(record)


def tags(union: object) -> set[object]:
    return {each.__struct_config__.tag for each in get_args(union)}


def test_message_of_every_kind_and_tag_is_kept() -> None:
    kinds = {decode(golden(name)).kind for name in KEPT}
    assert kinds == KINDS.names | SESSIONS.names | JOBS.names
    writes = {fields_of(name)["write"]["type"] for name in KEPT if name.startswith("operation")}
    entries = {fields_of(name)["entry"]["type"] for name in KEPT if name.startswith("entry")}
    assert (writes, entries) == (tags(Write), tags(Kept))


@pytest.mark.parametrize("name", KEPT)
def test_unknown_field_of_a_record_is_ignored(name: str) -> None:
    assert read(name, {**fields_of(name), "of_a_later_version": [1]}) == KEPT[name]


def test_unknown_field_in_a_part_of_a_record_is_ignored() -> None:
    fields = fields_of("operation_computed_plan")
    for part in (fields["settings"], fields["write"], fields["write"]["session"]):
        part["of_a_later_version"] = 1
    assert read("operation_computed_plan", fields) == MESSAGES["operation_computed_plan"]


@pytest.mark.parametrize("name", KEPT)
def test_unknown_kind_of_a_record_is_refused_with_the_advice_to_upgrade(name: str) -> None:
    record = decode(golden(name))
    with pytest.raises(UnknownVersionError, match=rf"'{record.kind}\.2' is not known .* upgrade"):
        kinds_of(name).message(replace(record, kind=f"{record.kind}.2"))


@pytest.mark.parametrize(("name", "union"), [("operation_plan", "write"), ("entry_sql", "entry")])
def test_unknown_tag_in_a_record_is_refused(name: str, union: str) -> None:
    fields = fields_of(name)
    fields[union]["type"] = "song"
    with pytest.raises(LogCorruptError, match=rf"record .* 'song' - at `\$.{union}.type`"):
        read(name, fields)


@pytest.mark.parametrize("name", KEPT)
def test_record_without_a_field_that_has_no_default_is_corrupt(name: str) -> None:
    fields, of = fields_of(name), type(KEPT[name])
    needed = {each.name for each in dataclasses.fields(of) if _is_needed(each)}
    assert needed <= fields.keys()
    for field in needed:
        left = {key: value for key, value in fields.items() if key != field}
        with pytest.raises(LogCorruptError, match=f"record cannot be read: .*`{field}`"):
            read(name, left)


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("operation_sql", "operation_class", "eventually"),
        ("operation_sql", "kind", "dance"),
        ("operation_sql", "settings", ["main"]),
        ("operation_sql", "insert", {"rows": 1}),
        ("operation_sql", "reads", None),
        ("operation_sql", "write", {"type": "sql", "sql": b"\xff"}),
        ("operation_rests_on", "analyzed_to", "1"),
        ("operation_rests_on", "rests_on", [1]),
        ("operation_redefines", "redefines", "everything"),
        ("decision_commit", "verdict", "perhaps"),
        ("decision_reject", "failure", {"error_class": "one"}),
        ("outcome", "failure", None),
        ("skip", "reason", None),
        ("skip", "offset", "first"),
        ("verify", "by", 7),
        ("verify_trusted", "trusted", 7),
        ("checksums", "marked", "yes"),
        ("checksums", "tables", {"t": 1}),
        ("checksums", "tables", [1]),
        ("join", "replaces", None),
        ("join", "replaces", True),
        ("join", "members", [{"name": "a"}]),
        ("leave", "cluster", None),
        ("revoke", "who", None),
        ("unable_revoke", "wish", "first"),
        ("operation_budget", "apply_budget_s", "soon"),
        ("checksums", "marker", True),
    ],
)
def test_record_with_an_impossible_field_is_corrupt_and_the_field_is_named(
    name: str, field: str, value: object
) -> None:
    kind = decode(golden(name)).kind
    with pytest.raises(LogCorruptError, match=rf"a {kind} record cannot be read: .*`\$\.{field}"):
        read(name, {**fields_of(name), field: value})


def test_roster_record_that_names_a_cluster_twice_is_corrupt() -> None:
    fields = fields_of("join")
    with pytest.raises(LogCorruptError, match="a cluster is named twice"):
        read("join", {**fields, "members": fields["members"][:1] * 2})


@given(st.binary(), st.sampled_from(sorted(KEPT)))
def test_record_of_any_bytes_is_a_message_or_corrupt(payload: bytes, name: str) -> None:
    with suppress(LogCorruptError):
        kinds_of(name).message(replace(decode(golden(name)), payload=payload))


def test_record_is_the_same_for_any_order_of_a_set() -> None:
    names = [f"t{number}" for number in range(50)]
    one, other = (replace(INSERT, reads=frozenset(each)) for each in (names, names[::-1]))
    assert to_record(one) == to_record(other)


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
def test_operation_is_exclusive_if_its_tables_do_not_show_its_whole_effect(
    change: dict[str, object], synchronous: bool, exclusive: bool
) -> None:
    operation = replace(INSERT, **change)  # type: ignore[arg-type]
    assert (operation.synchronous, operation.exclusive) == (synchronous, exclusive)


def test_operation_size_is_the_size_of_its_write() -> None:
    assert DDL.size_bytes == len("MSCK REPAIR TABLE flüge")
    assert replace(DDL, write=ArrowRows("x", b"1234567")).size_bytes == 7
    assert replace(DDL, write=SparkPlan(b"1234567")).size_bytes == 7


@pytest.mark.parametrize(
    "message",
    [
        Decision(7, ID, DecisionKind.REJECT, "a", 3, replace(FAILURE, details=DETAILS)),
        FailureReport(7, "a", 3, replace(FAILURE, details=DETAILS)),
        Rows(7, ID, "a", 3, failure=replace(FAILURE, details=DETAILS)),
        Passed(7, ID, "a", 3, replace(FAILURE, details=DETAILS)),
    ],
)
def test_error_details_of_spark_are_kept_in_the_record(message: Message) -> None:
    assert from_record(decode(encode(to_record(message)))) == message


def test_error_details_of_spark_are_bounded() -> None:
    context = Context(fragment="f" * 9_000, summary="s" * 9_000)
    spark_details = details(
        ["c" * 9_000] * 99,
        {f"{number}" * 3_000: "p" * 9_000 for number in range(99)},
        [context] * 9,
    )
    record = encode(to_record(FailureReport(7, "a", 3, replace(FAILURE, details=spark_details))))
    assert len(record) < 40_000
