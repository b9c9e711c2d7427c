"""The tables of a ring that has lost its log: the most advanced cluster, and the lost writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dmq import LogError, MemoryKeyValueStore, MemoryLog, Record
from dmq.key_value import MoveState, check_usable, origin_of
from dmq.moving import check_new
from haproc.cli.logs import print_findings
from haproc.cli.main import main
from haproc.engine.commits import Commit
from haproc.engine.copies import OPERATION
from haproc.replicate.records.progress import CopyRequest, Progress, from_cursor
from haproc.ring.founding import SHOWN_MAX, Findings, Mark, marks_of, shown
from haproc.ring.new_log import found

ROOT = Path(__file__).parents[2]
OLD, LOST = "sales.0123456789ab", "sales.ba9876543210"


def wrote(*offsets: int, log: str = LOST, at_ms: int = 0, copied: bool = False) -> list[Mark]:
    return [Mark(log, offset, at_ms or offset, copied) for offset in offsets]


def findings(**clusters: Mapping[str, Sequence[Mark]]) -> Findings:
    return Findings.of(clusters)


def test_marks_are_read_from_commits_of_this_ring_only() -> None:
    notes = (
        f"haproc:{LOST}:7",
        f"haproc:other.sales.{LOST[-12:]}:8",
        "haproc:sales:9",
        "somebody's",
        "",
        f"haproc:{LOST}:x",
    )
    commits = [Commit(n, 10 * n, "WRITE", note=note) for n, note in enumerate(notes)]
    copy = Commit(9, 90, OPERATION, note=f"haproc:{LOST}:5")
    assert marks_of("sales", [*commits, copy]) == [
        Mark(LOST, 7, 0),
        Mark(LOST, 5, 90, copied=True),
    ]


def test_offsets_beyond_the_last_one_of_the_founder_are_lost() -> None:
    result = findings(
        a={"t": wrote(3, 7), "u": wrote(9)},
        b={"t": wrote(3, 7, 12, 11), "u": wrote(9)},
        c={"t": wrote(7, 11), "u": wrote(4)},
    )
    (lost,) = result.lost("a")
    assert (lost.table, lost.applied, lost.offsets, lost.by) == ("t", 7, (11, 12), ("b", "c"))
    assert result.lost("b") == []
    assert [each.offsets for each in result.lost("c")] == [(12,), (9,)]
    assert result.best == "b"
    assert [result.is_best(name) for name in "abc"] == [False, True, False]
    assert result.begins_at == 13


def test_commits_that_the_founder_has_under_a_combined_offset_are_not_lost() -> None:
    # b applied three INSERTs one by one, a as one statement under the last one's offset.
    result = findings(a={"t": wrote(7)}, b={"t": wrote(5, 6, 7)})
    assert result.lost("a") == result.lost("b") == []
    assert result.best == "a"


def test_copy_is_no_write_but_covers_all_offsets_below_its_own() -> None:
    result = findings(a={"t": wrote(3, 7)}, b={"t": wrote(9, copied=True)})
    assert result.lost("a") == result.lost("b") == []
    assert result.begins_at == 10


def test_cluster_with_a_later_copy_is_more_advanced_as_it_may_hold_more_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = findings(a={"t": wrote(3, 7)}, b={"t": wrote(9, copied=True)}, c={"t": wrote(7)})
    assert result.copied_later("a") == result.copied_later("c") == [("t", ("b",))]
    assert result.copied_later("b") == []
    assert (result.best, result.is_best("a"), result.is_best("b")) == ("b", False, True)
    print_findings(result, "a")
    assert "were copied with later: t (by b)." in capsys.readouterr().out


def test_copy_right_after_the_last_write_of_the_founder_holds_no_more() -> None:
    result = findings(a={"t": wrote(7)}, b={"t": wrote(8, copied=True)})
    assert result.copied_later("a") == []
    assert result.is_best("a")


def test_marks_of_an_older_log_are_not_compared_with_those_of_the_lost_one() -> None:
    result = findings(
        a={"t": [*wrote(900, log=OLD, at_ms=1), *wrote(4, at_ms=2)]},
        b={"t": wrote(900, 901, log=OLD, at_ms=1)},
    )
    assert [each.offsets for each in result.lost("b")] == [(4,)]
    assert result.lost("a") == []
    assert result.begins_at == 5


def test_table_that_only_others_have_is_listed() -> None:
    result = findings(a={"t": wrote(3)}, b={"t": wrote(3), "u": wrote(8)}, c={"plain": []})
    assert result.only_on_others("a") == [("plain", ("c",)), ("u", ("b",))]
    (lost,) = result.lost("a")
    assert (lost.table, lost.applied, lost.offsets) == ("u", None, (8,))


def test_clusters_without_marks_are_equal_and_the_log_begins_at_1() -> None:
    result = findings(a={}, b={"t": []})
    assert (result.begins_at, result.best, result.is_best("b")) == (1, "a", True)


def test_many_offsets_are_shown_by_the_first_and_the_last() -> None:
    assert shown((1, 2)) == "1, 2"
    many = shown(tuple(range(100)))
    assert many.endswith("… 99 (100 in all)")
    assert many.count(",") == SHOWN_MAX - 1


def test_report_lists_lost_writes_and_the_unknown_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = findings(a={"s.t": wrote(3)}, b={"s.t": wrote(3, 8), "s.u": []})
    print_findings(result, "a")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "a 1 3 1 commits in 1 tables the founder" in lines
    assert "b 2 8 nothing known becomes a copy" in lines
    assert "Most advanced: b" in lines
    assert "s.t 3 8 b" in lines
    assert "s.u b" in lines
    assert "- Writes behind offset 8 that no cluster has applied: they are lost." in lines


# The new log


async def test_new_log_begins_after_all_offsets_and_the_other_clusters_request_a_copy() -> None:
    log, store = MemoryLog(), MemoryKeyValueStore()
    await found(log, store, "a", "abc", 4712)
    assert await log.start() == await log.end() == 4712
    progress = {name: from_cursor(cursor) for name, cursor in (await log.cursors()).items()}
    copying = Progress(low=4712, copying=CopyRequest("a", first=4712))
    assert progress == {"a": Progress(low=4712), "b": copying, "c": copying}
    check_usable("", await origin_of(log, store))
    assert await log.identity() == "memory"


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("calls", [0, 1, 2])
async def test_interrupted_founding_is_refused_until_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    log, store = MemoryLog(), MemoryKeyValueStore()
    commit, left = log.commit_cursor, iter(range(calls))

    async def some(reader: str, cursor: object) -> None:
        if next(left, None) is None:
            raise KilledError
        await commit(reader, cursor)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "commit_cursor", some)
    with pytest.raises(KilledError):
        await found(log, store, "a", "abc", 5)
    monkeypatch.undo()
    with pytest.raises(LogError, match="haproc ring found --on a was cut off"):
        check_usable("url", await origin_of(log, store))
    with pytest.raises(LogError, match="is not whole"):
        await found(log, store, "b", "abc", 5)
    await found(log, store, "a", "abc", 5)
    assert (await origin_of(log, store)).standing is MoveState.WHOLE
    with pytest.raises(LogError, match="is not new"):
        await found(log, store, "a", "abc", 5)


async def test_log_with_records_cannot_be_founded() -> None:
    log, store = MemoryLog(), MemoryKeyValueStore()
    await log.append([Record("claim")])
    with pytest.raises(LogError, match="offsets from 0 to 1"):
        await found(log, store, "a", "abc", 5)
    with pytest.raises(LogError, match="is not new"):
        await check_new(log, store)


def test_unknown_founder_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAPROC_SECRET", "s" * 32)
    monkeypatch.setenv("HAPROC_SPARK_TOKEN", "t" * 32)
    file = str(ROOT / "conf" / "ring.local.yaml")
    assert main(["ring", "found", "--config", file, "--on", "nobody"]) == 2
    assert "no cluster 'nobody'" in capsys.readouterr().err
