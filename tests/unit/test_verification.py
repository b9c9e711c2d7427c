"""Tests of the comparison of checksums: which clusters hold the same tables.

Docs: docs/proofs/exactly-once.md, "Divergence and verification".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq.memory import MemoryKeyValueStore
from haproc.config.model import OnForeignWrite
from haproc.engine.interface import TableState
from haproc.replicate.agree.comparing import Verifier
from haproc.replicate.agree.findings import Finding, compare
from haproc.replicate.agree.foreign_watch import ForeignWatch
from haproc.replicate.records.control import Checksums, Verify

WORDS = {"=": Finding.EQUAL, "x": Finding.DIFFERENT, "?": Finding.UNDECIDED}
WORDS["-"] = Finding.UNAVAILABLE


def records(reported: Mapping[str, str]) -> dict[str, Checksums]:
    """Return records of one table's checksums: ``1!`` of a marked cluster, ``E`` for an error."""
    return {
        name: Checksums(
            9,
            name,
            0,
            {} if text == "E" else {"t": text.strip("!")},
            "!" in text,
            "E" * (text == "E"),
        )
        for name, text in reported.items()
    }


@pytest.mark.parametrize(
    ("reported", "trusted", "found"),
    [
        ({"a": "1", "b": "1", "c": "1"}, "", "==="),
        # the majority is right
        ({"a": "1", "b": "2", "c": "2"}, "", "x=="),
        # a tie proves nothing
        ({"a": "1", "b": "2"}, "", "??-"),
        ({"a": "1", "b": "2", "c": "E"}, "", "??-"),
        ({"a": "1", "b": "2", "c": "3"}, "", "???"),
        ({"a": "1", "b": "2", "c": "2!"}, "", "???"),
        ({"a": "1", "b": "absent"}, "", "??-"),
        # one that is known to differ never outvotes one that is not
        ({"a": "1", "b": "2!", "c": "2!"}, "", "=xx"),
        ({"a": "1", "b": "1!", "c": "1!"}, "", "==="),
        ({"a": "1", "b": "1", "c": "1!"}, "", "==="),
        # ... and where all are, the majority decides, but only if all have told
        ({"a": "1!", "b": "2!", "c": "2!"}, "", "x=="),
        ({"b": "2!", "c": "2!"}, "", "-??"),
        # nobody is equal without having been compared
        ({"a": "1"}, "", "?--"),
        ({"a": "1", "b": "E"}, "", "?--"),
        # what cannot be read is not judged, and judges nobody
        ({"a": "1", "b": "", "c": "1"}, "", "=?="),
        ({"a": "", "b": "", "c": ""}, "", "???"),
        # a table that is missing is different
        ({"a": "1", "b": "1", "c": "absent"}, "", "==x"),
        # an operator's word decides, also against a majority and for one that counted as wrong
        ({"a": "1", "b": "2"}, "a", "=x-"),
        ({"a": "1", "b": "2"}, "b", "x=-"),
        ({"a": "1", "b": "2", "c": "3"}, "b", "x=x"),
        ({"a": "1", "b": "2", "c": "2"}, "a", "=xx"),
        ({"a": "1", "b": "2!"}, "b", "x=-"),
        ({"a": "absent", "b": "2"}, "a", "=x-"),
        # ... but not before that cluster has told what it holds
        ({"a": "1", "b": "2"}, "c", "??-"),
        ({"a": "1", "b": "2", "c": "2"}, "d", "???"),
        ({"a": "E", "b": "2", "c": "3"}, "a", "-??"),
        ({"a": "", "b": "2", "c": "3"}, "a", "???"),
        ({"a": "1"}, "a", "?--"),
    ],
)
def test_compare_of_one_table_gives_the_finding_of_each_cluster(
    reported: dict[str, str], trusted: str, found: str
) -> None:
    findings = compare(records(reported), "abc", trusted)
    assert [findings.clusters[name] for name in "abc"] == [WORDS[letter] for letter in found]


def test_compare_judges_each_table_separately() -> None:
    reported = {
        "a": Checksums(9, "a", 0, {"s": "1", "t": "1"}),
        "b": Checksums(9, "b", 0, {"s": "2", "t": "1"}),
        "c": Checksums(9, "c", 0, {"s": "1", "t": "2", "u": "1"}),
    }
    findings = compare(reported, "abc")
    assert findings.different("b") == ["s"]
    assert findings.different("c") == ["t", "u"]
    assert findings.clusters["a"] is Finding.EQUAL


def test_findings_are_counted_by_table_for_each_cluster() -> None:
    reported = {
        "a": Checksums(9, "a", 0, {"s": "1", "t": "1", "u": ""}),
        "b": Checksums(9, "b", 0, {"s": "1", "t": "1", "u": "2"}),
        "c": Checksums(9, "c", 0, {"s": "1", "t": "2", "u": "2"}),
    }
    findings = compare(reported, "abc")
    nothing = {finding.value: 0 for finding in Finding}
    assert findings.counted("a") == {**nothing, "equal": 2, "undecided": 1}
    assert findings.counted("c") == {**nothing, "equal": 2, "different": 1}
    assert compare(reported, "abcd").counted("d") == {**nothing, "unavailable": 3}


def test_compare_reports_a_tie_and_its_differing_checksums() -> None:
    tie = compare(records({"a": "3:00ff:12ab", "b": "2:00aa:12ab"}), "abc")
    assert tie.tied == ("t",)
    assert tie.differing == {
        "t": {
            "a": "3 rows, sum 00ff, columns 12ab",
            "b": "2 rows, sum 00aa, columns 12ab",
        }
    }
    decided = compare(records({"a": "1", "b": "absent"}), "abc", "a")
    assert decided.tied == ()
    assert decided.differing == {"t": {"a": "definition 1", "b": "absent"}}


def test_compare_decides_only_by_a_majority_that_later_checksums_cannot_change() -> None:
    # Two of five are the most so far; both that are missing may say the same as the third.
    reported = {"a": "1", "b": "1", "c": "2"}
    assert set(compare(records(reported), "abcde").clusters.values()) == {
        Finding.UNDECIDED,
        Finding.UNAVAILABLE,
    }
    assert compare(records({**reported, "d": "1"}), "abcde").clusters["c"] is Finding.DIFFERENT


def test_compare_of_a_ring_of_one_cluster_is_equal() -> None:
    assert compare(records({"a": "1!"}), "a").clusters == {"a": Finding.EQUAL}


def test_compare_without_tables_is_equal() -> None:
    reported = {name: Checksums(9, name, 0, {}) for name in "abc"}
    assert set(compare(reported, "abc").clusters.values()) == {Finding.EQUAL}


sums = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2", "1!", "2!", "", "E"]))


@given(sums, st.sampled_from(["", *"abcd"]))
def test_compare_never_finds_all_different_and_judges_equal_checksums_alike(
    reported: dict[str, str], trusted: str
) -> None:
    made = records(reported)
    found = compare(made, "abcd", trusted)
    spoke = [name for name in reported if reported[name] != "E"]
    if spoke:
        assert any(found.clusters[name] is not Finding.DIFFERENT for name in spoke)
    by_sum: dict[str, set[Finding]] = {}
    for name in spoke:
        by_sum.setdefault(made[name].tables["t"], set()).add(found.tables["t"][name])
    assert all(len(findings) == 1 for findings in by_sum.values())
    unmarked = {made[n].tables["t"] for n in spoke if not made[n].marked and made[n].tables["t"]}
    if len(unmarked) == 1 and not trusted:  # all that count agree: they are right
        (right,) = unmarked
        assert by_sum[right] == {Finding.EQUAL}


class Reading:
    """The parts of a cluster that a verifier needs; its tables are read when the test allows."""

    def __init__(self) -> None:
        self.reading: list[str] = []
        self.go_on = asyncio.Event()
        self.appended: list[Checksums] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.holds: list[bool] = []

    def core(self) -> Any:
        async def allowed() -> None:
            return

        async def append(message: Checksums) -> None:
            self.appended.append(message)

        return SimpleNamespace(
            me="a",
            notes=SimpleNamespace(born=0),
            unix_ms=lambda: 0,
            condition=SimpleNamespace(allowed=allowed, now=SimpleNamespace(diverged=None)),
            backoff=lambda: None,
            engine=self,
            schedule=SimpleNamespace(hold=lambda *, held: self.holds.append(held)),
            tasks=SimpleNamespace(spawn=lambda each: self.tasks.append(asyncio.create_task(each))),
            news=SimpleNamespace(changed=lambda: None),
            own_log=SimpleNamespace(epoch=0, append=append),
            timeouts=SimpleNamespace(apply_s=1.0, retry_first_s=0.0),
        )

    async def table_states(self) -> list[TableState]:
        return [TableState(name, 1) for name in ("s", "t")]

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        self.reading.append(state.name)
        await self.go_on.wait()
        return "1"


async def test_tables_are_read_to_the_end_only_for_the_newest_marker() -> None:
    cluster = Reading()
    core, store = cluster.core(), MemoryKeyValueStore()
    verifier = Verifier(core, ForeignWatch(core, store, OnForeignWrite.IGNORE))
    for offset in (5, 6):
        verifier.handle_verify_record(offset, Verify("a"))
        await verifier.at(offset)
        await asyncio.sleep(0)
    assert cluster.reading == ["s", "s"]
    cluster.go_on.set()
    await asyncio.gather(*cluster.tasks)
    assert cluster.reading == ["s", "s", "t"]
    assert [(each.marker, each.tables) for each in cluster.appended] == [(6, {"s": "1", "t": "1"})]
    assert cluster.holds == [True, True, False, False]
