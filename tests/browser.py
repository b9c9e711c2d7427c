"""Headless Chromium, controlled by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

PROGRAM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS: Final = (
    *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-proxy-server", "--remote-debugging-port=0"),
)
STARTS_S: Final = 60.0


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors of the page: of its script, and requests that the browser refused."""

    async def read(self) -> None:
        """Read the browser's messages, until it ends."""
        async for message in self._socket:
            event = json.loads(message.data)
            if answer := self._answers.pop(event.get("id", 0), None):
                if not answer.done():  # nobody waits for it any more
                    answer.set_result(event)
            elif event.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.complaints.append(entry["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        reply = await asyncio.wait_for(answer, 30)
        assert "error" not in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of an expression."""
        reply = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def until(self, script: str, within_s: float = 30.0) -> None:
        """Wait until an expression is true."""
        try:
            async with asyncio.timeout(within_s):
                while not await self.run(f"Boolean({script})"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            body = await self.run("document.body.innerText")
            raise AssertionError(f"{script} is not true; {self.complaints}; {body}") from None

    async def looks(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size and the colours of the screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    async def picture(self) -> bytes:
        """Return the screen as PNG."""
        reply = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(reply["data"])


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """Start Chromium with its own profile; its tab is empty."""
    assert PROGRAM is not None
    root = ["--no-sandbox"] if os.getuid() == 0 else []
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *OPTIONS,
        *root,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as response:
                tabs = await response.json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with http.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.read())
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(STARTS_S):
        while not (words := _words_of(file)):
            assert process.returncode is None, "Chromium ended at once"
            await asyncio.sleep(0.02)
    return int(words[0])


def _words_of(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []
