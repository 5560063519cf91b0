"""How far the relay log has grown, for readers of this process: they wait here, not on a clock."""

from __future__ import annotations

import threading

from pumpclient.mysql.relay.layout import Location


class Growth:
    """Told by the writer, awaited by readers; telling never blocks."""

    def __init__(self) -> None:
        """Start without any place."""
        self._grown = threading.Condition()
        self._end: Location | None = None

    @property
    def end(self) -> Location | None:
        """Where the last whole event ends that readers can see; None before the first."""
        with self._grown:
            return self._end

    def tell(self, end: Location) -> None:
        """Wake the readers when there is more than before."""
        with self._grown:
            if end != self._end:
                self._end = end
                self._grown.notify_all()

    def wait_beyond(self, seen: Location | None, timeout_s: float) -> Location | None:
        """Return the end as soon as it is not `seen`, or after `timeout_s` as it is."""
        with self._grown:
            self._grown.wait_for(lambda: self._end != seen, timeout_s)
            return self._end

    def is_active(self, location: Location) -> bool:
        """Tell whether the file of `location` is the one that is written."""
        with self._grown:
            return self._end is not None and self._end[:2] == location[:2]
