"""The relay log of a source: its receiver, which may fail and be restarted, and its purger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.relay.purger import Needed, Purger
from pumpclient.mysql.relay.receiver import RelayOptions, RelayReceiver, start_thread
from pumpclient.mysql.relay.resume import Start
from pumpclient.mysql.source.config import RelayConfig

_OPENED_HINT = (
    "look at the disk and the rights there, or move the folder away and start the source again"
)


class RelayLog:
    """One relay log; `close` ends all threads that `begin` starts."""

    def __init__(
        self,
        config: RelayConfig,
        address: ServerAddress,
        stream: StreamOptions,
        needed: Needed,
        ended: Callable[[], None],
    ) -> None:
        """Start nothing yet; a failed writer calls `ended` from another thread."""
        self._config = config
        self._address = address
        self._stream = stream
        self._ended = ended
        self._thread: threading.Thread | None = None
        self._receiver: RelayReceiver | None = None
        self.failure: PenstockError | None = None
        """The error that ended the receiver."""
        self.purger = Purger(
            config.dir,
            needed,
            interval_s=config.purge_interval_s,
            expires_s=config.purge_expires_s,
            remain_space_bytes=config.purge_remain_space_bytes,
        )

    @property
    def dir(self) -> Path:
        return self._config.dir

    @property
    def receiver(self) -> RelayReceiver | None:
        return self._receiver

    def begin(self, place: Location, accepts: str) -> RelayReceiver:
        """Return a running receiver; a new relay log starts with the file of `place`.

        `accepts` names a history of the server that an operator accepts.
        """
        if self._receiver is not None and self.failure is None:
            return self._receiver
        if self._thread is None:
            self.purger.start()
        else:
            self._thread.join()
        self.failure = None
        options = RelayOptions(
            stream=self._stream,
            start=Start(file=str(place.file), accepts=accepts),
            sync_interval_s=self._config.sync_interval_s,
        )
        self._receiver = RelayReceiver(self.dir, self._address, options)
        self._thread = start_thread(self._receiver, self._failed)
        return self._receiver

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            error = NeedsOperator(
                f"the relay log in {self.dir}: {error}", hint=_OPENED_HINT, code=Code.RELAY_UNUSABLE
            )
        self.failure = error
        self._ended()

    def close(self) -> None:
        if self._thread is None or self._receiver is None:
            return
        self.purger.close()
        self._receiver.stop()
        self._thread.join()
