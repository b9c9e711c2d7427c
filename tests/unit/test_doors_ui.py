"""The status page's files and its stream: access, and the cost of viewers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from haproc.config.sections import User
from haproc.doors.ui import door as ui_door
from haproc.doors.ui.door import Broadcaster, Viewer
from tests.unit.door_rig import SECRET, CannedWatched, Rig, door, until

FOLDER = Path(ui_door.__file__).parent
FILES = ["/ui", "/ui/page.html", "/ui/page.css", "/ui/page.js", "/ui/"]
USERS = (User("ann", "ann-token"),)


async def events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    """Return the first events of a stream."""
    found = list[tuple[str, Any]]()
    async with asyncio.timeout(10):
        while len(found) < count:
            event = (await response.content.readuntil(b"\n\n")).decode()
            name, data = event.strip().split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def seen(rig: Rig, headers: dict[str, str]) -> Any:
    """Return the first snapshot."""
    async with rig.http.get(rig.url + "/ui/events", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream"
        (first, _), (second, snapshot) = await events(response, 2)
        assert (first, second) == ("history", "snapshot")
        return snapshot


# -- the files -----------------------------------------------------------------------------------


async def test_page_files_have_security_headers_and_an_etag(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        for path in FILES:
            async with rig.http.get(rig.url + path) as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-cache"
                tag = response.headers["ETag"]
            async with rig.http.get(rig.url + path, headers={"If-None-Match": tag}) as response:
                assert (response.status, await response.read()) == (304, b"")
        assert await rig.status_of("get", "/ui/..%2fdoor.py") == 404


def test_page_is_small_and_loads_nothing_from_other_hosts() -> None:
    files = [each for each in FOLDER.iterdir() if each.stem == "page"]
    assert len(files) == 3
    assert sum(each.stat().st_size for each in files) <= 200_000
    for each in files:
        text = each.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$|; // .*$", "", text, flags=re.MULTILINE), each
        assert "innerHTML" not in text
    page = (FOLDER / "page.html").read_text()
    assert not re.search(r"\son\w+=|<style|\sstyle=|<script(?![^>]* src=)", page)


async def test_page_needs_no_token_although_its_stream_does(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, watched=CannedWatched()) as rig:
        for path in FILES:
            assert await rig.status_of("get", path) == 200
        for path in ("/ui/events", "/ui/events/", "/uix"):
            assert await rig.status_of("get", path) == 401


async def test_client_door_has_no_page_unless_configured(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for path in (*FILES, "/ui/events"):
            assert await rig.status_of("get", path) == 404


# -- who sees what -------------------------------------------------------------------------------


async def test_stream_shows_tables_and_users_to_operators_only(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        public = await seen(rig, {})
        assert (public["operator"], public["operations"]) == (False, [{"offset": 7}])
        full = await seen(rig, SECRET)
        assert full["operator"] is True
        assert full["operations"] == [{"offset": 7, "user": "ann", "tables": ["t"]}]
        wrong = {"Authorization": "Bearer ann-token"}
        assert await rig.status_of("get", "/ui/events", headers=wrong) == 401


async def test_stream_on_the_client_door_shows_no_users(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, watched=CannedWatched()) as rig:
        shown = await seen(rig, {"Authorization": "Bearer ann-token"})
        assert (shown["operator"], shown["operations"]) == (None, [{"offset": 7}])


# -- the broadcaster -----------------------------------------------------------------------------


async def test_ten_viewers_cost_one_computation() -> None:
    watched = CannedWatched()
    broadcaster = Broadcaster(watched, interval_s=1000)
    with contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(broadcaster.watching(operator=False)) for _ in range(10)]
        operator = stack.enter_context(broadcaster.watching(operator=True))
        events_sent = [await asyncio.wait_for(each.next_event(), 10) for each in viewers]
        assert watched.looks == 1
        assert all(each is events_sent[0] for each in events_sent)
        assert b"ann" in (await operator.next_event() or b"") and b"ann" not in (
            events_sent[0] or b""
        )
    await broadcaster.aclose()


async def test_snapshot_is_not_computed_without_viewers() -> None:
    watched = CannedWatched()
    broadcaster = Broadcaster(watched, interval_s=1000)
    with broadcaster.watching(operator=False) as viewer:
        await asyncio.wait_for(viewer.next_event(), 10)
    broadcaster.changed()
    await until(lambda: broadcaster._task is None)
    assert watched.looks == 1
    with broadcaster.watching(operator=False) as viewer:
        assert await asyncio.wait_for(viewer.next_event(), 10)
    assert watched.looks == 2
    await broadcaster.aclose()


async def test_changed_state_is_sent_at_once() -> None:
    broadcaster = Broadcaster(CannedWatched(), interval_s=1000)
    with broadcaster.watching(operator=False) as viewer:
        await asyncio.wait_for(viewer.next_event(), 10)
        broadcaster.changed()
        assert b'"look":2' in (await asyncio.wait_for(viewer.next_event(), 10) or b"")
    await broadcaster.aclose()


async def test_slow_viewer_gets_only_the_newest_event() -> None:
    viewer = Viewer(operator=False)
    for number in range(5):
        viewer.give(b"%d" % number)
    assert await viewer.next_event() == b"4"
    waiting = asyncio.create_task(viewer.next_event())
    await asyncio.sleep(0)
    assert not waiting.done()
    viewer.end()
    assert await waiting is None


async def test_stream_ends_with_an_again_event_after_its_maximum_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_door, "WATCH_S", 0.0)
    async with (
        door(tmp_path, operator=True) as rig,
        rig.http.get(rig.url + "/ui/events", headers=SECRET) as response,
    ):
        text = await asyncio.wait_for(response.text(), 10)
    assert text.endswith("event: again\ndata: {}\n\n")


async def test_viewers_over_the_limit_are_refused_except_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_door, "VIEWERS_MAX", 1)
    async with door(tmp_path, operator=True) as rig:
        first = await rig.http.get(rig.url + "/ui/events")
        assert await rig.status_of("get", "/ui/events") == 429
        assert await rig.status_of("get", "/ui/events", headers=SECRET) == 200
        first.close()

        status = 429
        async with asyncio.timeout(10):
            while status == 429:
                async with rig.http.get(rig.url + "/ui/events") as response:
                    status = response.status
        assert status == 200


async def test_streams_end_when_the_door_closes(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        response = await rig.http.get(rig.url + "/ui/events")
        await events(response, 2)
        began = asyncio.get_running_loop().time()
        await rig.listener.aclose()
        await asyncio.wait_for(response.content.read(), 10)
        assert asyncio.get_running_loop().time() - began < 0.9  # the door would wait for 1 s


async def test_failed_snapshot_ends_the_streams() -> None:
    class Broken(CannedWatched):
        async def snapshot(self) -> Any:
            raise LookupError

    broadcaster = Broadcaster(Broken())
    with broadcaster.watching(operator=False) as viewer:
        assert await asyncio.wait_for(viewer.next_event(), 10) is None
