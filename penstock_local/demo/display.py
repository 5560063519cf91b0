"""Shows the demo's progress: a changing line on a terminal, periodic lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

LINE_EVERY_S = 2.0


class Display:
    """Shows the line of `look()` until it is left; `say` writes a separate line."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._is_live else None
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal

    def say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started
        self._console.print(f"[{elapsed_s:6.1f} s] {text}", markup=False, soft_wrap=True)

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._live:
            self._live.stop()

    def _run(self) -> None:
        pause_s = 0.2 if self._live else LINE_EVERY_S
        while not self._done.wait(pause_s):
            line = self._look()
            if self._live:
                self._live.update(Text(line), refresh=True)
            else:
                self.say(line)
