"""Tests of the status page in a real browser: it shows a killed HAProc, and its return."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.browser import PROGRAM, Page, browser
from tests.rig import Rig

pytestmark = [
    pytest.mark.fault,
    pytest.mark.logs("sqlite"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium"),
]
SEEN_S = 1.0
"""The page shows a change of a HAProc within this time."""
KILLS = 3
"""The machine may be busy, so only one of these kills must be seen in time."""


def shows(name: str, state: str) -> str:
    """Return the condition that the page shows a cluster in a state."""
    return f"document.getElementById('cluster-{name}')?.dataset.state === '{state}'"


async def open_page(page: Page, rig: Rig, name: str) -> None:
    await page.go(rig.ring.config.peer_url(name) + "/ui")
    await page.until(" && ".join(shows(each, "READY") for each in rig.ring.names))


async def type_in(page: Page, text: str) -> None:
    await page.until("document.querySelector('dialog')?.open")
    await page.call("Input.insertText", text=text)
    await page.press("Enter", 13)


async def sign_in(page: Page, rig: Rig) -> None:
    """Sign in as an operator, with the keyboard alone."""
    while await page.run("document.activeElement.id") != "sign":
        await page.press("Tab", 9)
    await page.press("Enter", 13)
    await type_in(page, rig.ring.config.secret)
    await page.until("document.querySelector('[data-key=drain]')")


async def test_page_shows_a_kill_and_a_recovery_in_time(rig: Rig, tmp_path: Path) -> None:
    took_s = []
    async with browser(tmp_path) as page:
        await open_page(page, rig, "a")
        for _ in range(KILLS):
            began = time.monotonic()
            rig.ring.kill("b", "haproc")
            await page.until(shows("b", ""))
            took_s.append(time.monotonic() - began)
            await page.until("document.title.includes('b NO HEARTBEAT')", SEEN_S)
            await asyncio.to_thread(rig.start, "b")  # returns when it serves
            began = time.monotonic()
            await page.until(shows("b", "READY"))
            took_s.append(time.monotonic() - began)
            if max(took_s[-2:]) < SEEN_S:
                break
        text = await page.run("document.getElementById('changes').innerText")
        assert "b: READY → ▲ NO HEARTBEAT" in text
        assert page.complaints == []
    print("seen after", took_s)
    assert max(took_s[-2:]) < SEEN_S, took_s


async def test_page_lets_an_operator_sign_in_and_drain_and_undrain_after_a_confirmation(
    rig: Rig, tmp_path: Path
) -> None:
    table = await asyncio.to_thread(rig.table)
    await asyncio.to_thread(rig.run, f"INSERT INTO {table} VALUES (1, 'x')", "a")
    async with browser(tmp_path) as page:
        await open_page(page, rig, "a")
        await page.until("document.querySelector('#operations').innerText.includes('insert')")
        assert table not in await page.run("document.body.innerText")
        assert await page.run("document.querySelector('[data-key]')") is None
        await sign_in(page, rig)
        await page.until(f"document.body.innerText.includes('{table}')")
        rows = "[...document.querySelectorAll('#operations tbody tr')].map((row) => row.innerText)"
        lines = await page.run(f"{rows}.filter((row) => row.includes('{table}'))")
        line = next(each for each in lines if "insert" in each)
        assert all(word in line for word in ("insert", "text", "anonymous at a", "applied")), line
        assert rig.ring.config.secret not in await page.run("location.href + document.cookie")
        for key, state in (("drain", "DRAINING"), ("undrain", "READY")):
            await page.run(f"document.querySelector('[data-key={key}]').click()")
            await page.press("Escape", 27)  # the answer is no
            assert rig.status("a")["state"] != state
            await page.until("!document.querySelector('dialog').open")
            # Without a moment between: the event of the first dialog's end may still be to come.
            await page.run(
                f"document.querySelector('[data-key={key}]').click(),"
                "document.querySelector('dialog').close(),"
                f"document.querySelector('[data-key={key}]').click(),"
                "document.getElementById('confirm').click()"
            )
            await page.until(shows("a", state))
        await page.looks(360, 740, dark=True)
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.complaints == []
