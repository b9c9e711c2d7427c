"""A result that one run has begun and another run resumes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.doors.connect.responses import START, Followed, Following, Kind, ResultPosition, merged
from haproc.failure import ErrorClass, RequestError
from tests.unit.spark_responses import Client, Response, complete, metrics, result, rows, schema

VALUES = st.none() | st.text(max_size=4)
TABLES = st.lists(st.tuples(VALUES, st.integers(0, 9)), max_size=30).map(
    lambda rows: pa.table(
        {"a": pa.array([row[0] for row in rows], pa.string()), "b": [row[1] for row in rows]},
        schema=pa.schema([("a", pa.string()), ("b", pa.int64())]),
    )
)
EDGES = st.lists(st.integers(0, 30), max_size=6)


def followed(responses: list[bytes], start: ResultPosition = START) -> list[Followed]:
    following = Following(start)
    return [each for response in responses for each in following.take(response)]


def within(edges: list[int], table: pa.Table) -> list[int]:
    return [min(edge, table.num_rows) for edge in edges]


@settings(max_examples=200)
@given(TABLES, EDGES, EDGES, EDGES, st.data())
def test_result_that_breaks_twice_anywhere_arrives_whole(
    table: pa.Table, one: list[int], other: list[int], third: list[int], data: st.DataObject
) -> None:
    client, position = Client(), START
    for edges, chunks in ((one, 1), (other, data.draw(st.integers(1, 3))), (third, 1)):
        responses = followed(result(table, within(edges, table), chunks), position)
        last = edges is third or client.seen[-1:] == ["result_complete"]
        count = len(responses) if last else data.draw(st.integers(0, len(responses)))
        while 0 < count < len(responses) and responses[count - 1].position is None:
            count += 1  # in the middle of a batch's chunks nobody can go on
        for each in responses[:count]:
            client.take(each.response)
            position = each.position or position
        if client.seen[-1:] == ["result_complete"]:
            break
    assert client.has_all_of(table)


@given(TABLES.filter(lambda table: table.num_rows > 0), EDGES, EDGES, st.data())
def test_result_with_a_changed_row_among_the_sent_ones_ends_with_an_error(
    table: pa.Table, one: list[int], other: list[int], data: st.DataObject
) -> None:
    sent_rows = data.draw(st.integers(1, table.num_rows))
    before = followed(result(table.slice(0, sent_rows), within(one, table.slice(0, sent_rows))))
    position = before[-1].position
    assert position is not None and position.rows == sent_rows
    values = table["b"].to_pylist()
    values[data.draw(st.integers(0, sent_rows - 1))] += 10
    changed = table.set_column(1, "b", pa.array(values))
    with pytest.raises(RequestError) as raised:
        followed(result(changed, within(other, table)), position)
    assert raised.value.error_class == ErrorClass.RESULT_CHANGED


def test_result_with_fewer_rows_than_sent_ends_with_an_error() -> None:
    table = pa.table({"a": [1, 2, 3]})
    position = followed(result(table, []))[2].position
    assert position is not None and position.rows == 3
    with pytest.raises(RequestError, match="2 rows now, 3 were"):
        followed(result(table.slice(0, 2), [1]), position)


def test_remaining_rows_of_a_batch_are_written_again_with_their_offset() -> None:
    table = pa.table({"a": list(range(10))})
    position = followed(result(table, [4]))[2].position
    assert position is not None and position.rows == 4
    rest = [each for each in followed(result(table, [7]), position) if each.kind is Kind.ROWS]
    batch = Response.FromString(rest[0].response).arrow_batch
    assert (batch.start_offset, batch.row_count) == (4, 3)
    assert pa.ipc.open_stream(batch.data).read_all()["a"].to_pylist() == [4, 5, 6]


def test_other_responses_that_were_sent_are_not_sent_again() -> None:
    table = pa.table({"a": [1]})
    whole = [schema(), *rows(table.to_batches()[0], 0), metrics(), metrics(), complete()]
    for index, each in enumerate(followed(whole)[:-1]):
        assert each.position is not None
        assert [one.response for one in followed(whole, each.position)] == whole[index + 1 :]


def test_rows_of_an_unknown_type_pass_without_a_position() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    batch = pa.record_batch({"a": union})
    responses = [schema(), *rows(batch, 0), complete()]
    results = followed(responses)
    assert [each.response for each in results] == responses
    assert [each.position is None for each in results] == [False, True, True]
    with pytest.raises(RequestError, match="cannot be compared"):
        followed(responses, ResultPosition(1, 1, b"x" * 16))


def test_responses_that_fit_into_one_message_are_merged() -> None:
    batches = [pa.RecordBatch.from_pydict({"a": [number]}) for number in range(2)]
    parts = [schema(), *rows(batches[0], 0), *rows(batches[1], 1), metrics(), complete()]
    merged_responses = merged(followed(parts))
    assert [each.kind for each in merged_responses] == [Kind.ROWS, Kind.ROWS, Kind.COMPLETE]
    client = Client()
    for each in merged_responses:
        client.take(each.response)
    assert client.has_all_of(pa.Table.from_batches(batches))
    assert [each.position.rows for each in merged_responses if each.position] == [1, 2, 2]


def test_responses_of_different_kinds_are_not_merged() -> None:
    made = Response()
    made.sql_command_result.relation.local_relation.data = b"x"
    parts = [
        bytes(made.SerializeToString()),
        metrics(),
        schema(),
        bytes(made.SerializeToString()),
        complete(),
    ]
    merged_responses = merged(followed(parts))
    assert len(merged_responses) == 3
