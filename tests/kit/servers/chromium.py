"""A real Chromium without a screen, driven through DevTools' protocol on two pipes.

    {"id": 1, "method": "Page.navigate", "params": {…}, "sessionId": "…"} NUL    to descriptor 3
    {"id": 1, "result": {…}} NUL, and events without an id                        from descriptor 4

Neither a driver nor a package is needed for that; https://chromedevtools.github.io/devtools-protocol
has the methods.
"""

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.local.process import program
from tests.kit.wait import deadline

ANSWER_S_MAX = 30.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip


class Size(NamedTuple):
    """A screen: what it is called, its width and height in CSS pixels, pixels for each of those."""

    name: str
    width: int
    height: int
    density: float = 1.0


PHONE = Size("phone", 390, 844, 1.5)
TABLET = Size("tablet", 820, 1180)
DESKTOP = Size("desktop", 1440, 900)
SIZES = (PHONE, TABLET, DESKTOP)


def _high(descriptor: int) -> int:
    """Return a descriptor's copy that is none of those which Chromium is to find its pipes at."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


class Chromium:
    """One browser with one page; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Start it with a profile of its own in `folder`."""
        to_read, self._to_write = map(_high, os.pipe())
        self._from_read, from_write = map(_high, os.pipe())
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        command = [program("chromium"), *_FLAGS, f"--user-data-dir={folder / 'profile'}"]
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, *command, "about:blank"],
                pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._number = 0
        self._read = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []
        """What it said without being asked: messages of the console, requests, exceptions."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError, AssertionError):
            self._session = ""
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to_write)
        os.close(self._from_read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return what a method of the protocol answers; its refusal is an AssertionError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        deadline_s = deadline(ANSWER_S_MAX)
        while True:
            answer = self._next(deadline_s, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            if "method" in answer:
                self.events.append(answer)

    def _next(self, deadline_s: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._read:
            left_s = deadline_s - time.monotonic()
            ready = select.select([self._from_read], [], [], max(0.0, left_s))[0]
            assert ready, f"Chromium does not answer {method}"
            data = os.read(self._from_read, 1 << 20)
            assert data, f"Chromium has ended before it answered {method}"
            self._read += data
        line, _, self._read = self._read.partition(b"\0")
        return dict(json.loads(line))

    # What tests do.

    def show(self, size: Size, *, dark: bool = False) -> None:
        """Look through a screen of that size, on a machine that is light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size.width, height=size.height,
            deviceScaleFactor=size.density, mobile=size is PHONE,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    def open(self, url: str) -> None:
        """Go to a page, and return once it is there."""
        answer = self.call("Page.navigate", url=url)
        assert not answer.get("errorText"), f"{url}: {answer['errorText']}"
        self.until("document.readyState === 'complete'")

    def ask(self, script: str) -> Any:
        """Return what an expression of JavaScript comes to, waiting for its promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, within_s: float = ANSWER_S_MAX) -> None:
        """Return once an expression is true."""
        deadline_s = deadline(within_s)
        while not self.ask(f"Boolean({script})"):
            assert time.monotonic() < deadline_s, f"never true: {script}\n{self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.ask("document.body?.innerText"))

    def click(self, selector: str) -> None:
        self.ask(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self) -> bytes:
        shot = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return base64.b64decode(shot["data"])

    def complaints(self) -> list[str]:
        """Return what the page wrote to its console, threw, or was refused by its own policy."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(str(params["entry"]))
        return found

    def asked_for(self) -> set[str]:
        return {
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        }
