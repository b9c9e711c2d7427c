"""Pieces of a result: each is bounded, and together they have each row once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from haproc import protos
from haproc.engine.pieces import (
    ANSWER_BYTES_MAX,
    ATTEMPT_ROWS_MAX,
    RowsPiece,
    StagingFile,
    attempt,
    cut,
    rows_of,
    unstaged,
    whole,
)
from haproc.engine.statement import SqlText

MB = 1 << 20
QUERY = SqlText("SELECT 1")


def schema(*kinds: str) -> bytes:
    found = protos.data_types.DataType()
    for kind in kinds:
        field = found.struct.fields.add(name=kind).data_type
        getattr(field, kind).SetInParent()
    return bytes(found.SerializeToString())


def limit(kinds: tuple[str, ...], rows_max: int = 10**9) -> Any:
    attempted = attempt(QUERY, schema(*kinds), rows_max)
    limit = protos.base.Plan.FromString(attempted.plan.plan).root.limit
    assert limit.limit == attempted.rows_max + 1
    return limit


@given(st.lists(st.integers(1, 3 * ANSWER_BYTES_MAX), max_size=12))
def test_files_are_read_together_up_to_the_answer_limit(sizes: list[int]) -> None:
    files = [StagingFile(f"f{at}", size) for at, size in enumerate(sizes)]
    size_of = {file.name: file.size_bytes for file in files}
    read: list[str] = []
    for each in whole(files):
        if isinstance(each, StagingFile):
            assert each.size_bytes > ANSWER_BYTES_MAX
            read.append(each.name)
        else:
            assert sum(size_of[name] for name in each.files) <= ANSWER_BYTES_MAX
            read += each.files
    assert read == list(size_of)


@given(st.lists(st.integers(1, 2 * ANSWER_BYTES_MAX), min_size=1, max_size=12))
def test_large_file_is_cut_between_its_rows(widths: list[int]) -> None:
    found = list(cut("f", widths))
    assert [row for piece in found for row in range(piece.begin, piece.end or 0)] == list(
        range(len(widths))
    )
    for piece in found:
        assert piece.end is not None
        of_piece = widths[piece.begin : piece.end]
        assert len(of_piece) == 1 or sum(of_piece) <= ANSWER_BYTES_MAX


def test_table_without_files_is_one_piece_without_rows() -> None:
    (piece,) = whole([])
    assert piece == RowsPiece(())
    assert rows_of("t", 2, RowsPiece(())).sql == "SELECT c1, c2 FROM t WHERE false"


def test_piece_of_a_file_is_selected_by_its_row_numbers() -> None:
    assert rows_of("t", 1, RowsPiece(("f",), 3, 7)).sql == (
        "SELECT c1 FROM t WHERE _metadata.file_name IN ('f')"
        " AND _metadata.row_index >= 3 AND _metadata.row_index < 7"
    )


def test_attempt_on_rows_of_fixed_width_is_bounded_by_rows_only() -> None:
    relation = limit(("long", "double"))
    assert relation.limit - 1 == ANSWER_BYTES_MAX // 32
    assert limit(("long",), 2).limit == 3
    *columns, wide = relation.input.project.expressions
    assert [each.expression_string.expression for each in columns] == ["c1", "c2"]
    assert wide.expression_string.expression == "NOT (true) AS wide"


def test_attempt_on_rows_of_variable_width_leaves_out_values_that_are_too_wide() -> None:
    relation = limit(("long", "string", "variant"))
    assert relation.limit - 1 == ATTEMPT_ROWS_MAX
    room = ANSWER_BYTES_MAX // ATTEMPT_ROWS_MAX - 8
    texts = [each.expression_string.expression for each in relation.input.project.expressions]
    assert all(f"<= {room}" in text for text in texts)
    assert texts[1].startswith("CASE WHEN ") and texts[1].endswith(" THEN c2 END AS c2")
    assert "octet_length(c2)" in texts[3] and "CAST(c3 AS STRING)" in texts[3]


def test_attempt_on_very_many_columns_is_for_few_rows() -> None:
    relation = limit(("decimal",) * 5000)
    assert (relation.limit - 1) * 16 * 5000 <= ANSWER_BYTES_MAX


def test_types_that_no_table_can_hold_are_found_at_any_depth() -> None:
    kind = protos.data_types.DataType()
    inner = kind.struct.fields.add(name="a").data_type.array.element_type.struct
    inner.fields.add(name="b").data_type.long.SetInParent()
    assert not unstaged(kind.SerializeToString())
    inner.fields.add(name="i").data_type.calendar_interval.SetInParent()
    assert "INTERVAL" in unstaged(kind.SerializeToString())
    inner.fields[1].data_type.struct.SetInParent()
    assert unstaged(kind.SerializeToString()) == "structs without fields"
