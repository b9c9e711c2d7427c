"""``haproc status`` shows each HAProc's own answer, and who hears it."""

from __future__ import annotations

import pytest

from haproc.cli.nodes import print_status


def test_status_shows_who_hears_a_haproc(capsys: pytest.CaptureFixture[str]) -> None:
    def clusters(**direct: bool) -> list[dict[str, object]]:
        return [{"name": name, "direct": heard} for name, heard in direct.items()]

    print_status(
        {
            "a": {
                "state": "READY",
                "clusters": clusters(a=True, b=True, c=False),
                "in_sync": ["a", "b"],
                "high_watermark": 7,
            },
            "b": {"state": "READY", "clusters": clusters(a=True, b=True, c=False)},
            "c": {"state": "-", "error": "no answer"},
        }
    )
    head, a, b, c, sync = capsys.readouterr().out.splitlines()
    at = head.index("HEARD BY")
    assert [line[at : at + 8].strip() for line in (a, b, c)] == ["b", "a", ""]
    assert "no answer" in c
    assert sync == "in sync, as a sees it: a b; high watermark 7"
