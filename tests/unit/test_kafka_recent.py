"""Tests of the newest records of a log, kept in memory."""

from __future__ import annotations

from dmq.kafka_reader import Recent


def values(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, str(offset).encode()) for offset in offsets]


def test_extend_with_consecutive_values_makes_one_run() -> None:
    recent = Recent()
    recent.extend(values(5, 6))
    recent.extend(values(6, 7))
    assert recent.find_kept_records(5, 10) == values(5, 6, 7)
    assert recent.find_kept_records(6, 1) == values(6)
    assert recent.find_kept_records(4, 10) == recent.find_kept_records(8, 10) == []
    assert recent.get(7) == b"7"
    assert recent.get(8) is recent.get(4) is None


def test_extend_after_a_gap_starts_a_new_run() -> None:
    recent = Recent()
    recent.extend(values(1, 2, 9, 10))
    assert recent.find_kept_records(1, 10) == []
    assert recent.find_kept_records(9, 10) == values(9, 10)


def test_extend_with_older_values_changes_nothing() -> None:
    recent = Recent()
    recent.extend(values(5, 6))
    recent.extend(values(1, 2, 5))
    assert recent.find_kept_records(5, 10) == values(5, 6)


def test_extend_beyond_a_limit_drops_the_oldest() -> None:
    recent = Recent(records_max=8)
    recent.extend(values(*range(100)))
    assert recent.find_kept_records(99, 1) == values(99)
    assert recent.find_kept_records(100 - 9, 1) == []
    recent = Recent(bytes_max=100)
    recent.extend([(0, bytes(60)), (1, bytes(60))])
    assert recent.get(0) is None and recent.get(1) == bytes(60)
    recent.extend([(2, bytes(500))])
    assert recent.get(2) is None
    recent.extend(values(3))
    assert recent.get(3) == b"3"


def test_forget_drops_values_below_the_offset() -> None:
    recent = Recent()
    recent.extend(values(1, 2, 3))
    recent.forget(3)
    assert recent.find_kept_records(2, 5) == [] and recent.find_kept_records(3, 5) == values(3)
    recent.forget(50)
    recent.extend(values(4))
    assert recent.find_kept_records(4, 1) == values(4)
