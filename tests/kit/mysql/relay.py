"""A relay unit in a thread of the test, and what its files are held against."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pumpclient.mysql.events.frame import EventType, read_header
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.relay.layout import RelayFolder
from pumpclient.mysql.relay.receiver import RelayOptions, RelayReceiver
from pumpclient.mysql.relay.resume import Start
from tests.kit.servers.binlog_server import AnyBinlogServer, as_sent
from tests.kit.wait import eventually

LONG_S = 120
STREAM = StreamOptions(idle_s=0.05, heartbeat_s=5)
FIRST = "mysql-bin.000001"


class Relay:
    """A unit in a thread, and what became of it."""

    def __init__(self, root: Path, address: ServerAddress, options: RelayOptions) -> None:
        self.root = root
        self.unit = RelayReceiver(root, address, options)
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.unit.run()
        except BaseException as error:
            self.failed = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.unit.stop()
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()

    def has(self, server: AnyBinlogServer) -> bool:
        assert self.failed is None, self.failed
        end = self.unit.status().end
        return end is not None and (str(end.file), end.position) == server.end()

    def catch_up(self, server: AnyBinlogServer) -> None:
        eventually(lambda: self.has(server), LONG_S)

    def fails(self) -> BaseException:
        eventually(lambda: self.failed is not None, LONG_S)
        assert self.failed is not None
        return self.failed


@contextmanager
def relaying(
    root: Path,
    server: AnyBinlogServer,
    start: Start | None = None,
    address: ServerAddress | None = None,
    **changes: object,
) -> Iterator[Relay]:
    stream = replace(STREAM, **changes)  # type: ignore[arg-type]
    options = RelayOptions(
        stream=stream, start=start or Start(file=FIRST), sync_interval_s=0.05, retry_s_max=0.2
    )
    relay = Relay(root, address or server.address, options)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


def assert_same(server: AnyBinlogServer, folder: Path, names: list[str] | None = None) -> None:
    for name in names or server.logs:
        wanted, found = as_sent(server.file(name).read_bytes()), (folder / name).read_bytes()
        # A server notes some time after it began a file that recovery needs no earlier one.
        later = wanted[len(found) :]
        assert not later or read_header(later).type == EventType.BINLOG_CHECKPOINT, name
        assert found == wanted[: len(found)], name


def sub_dir(root: Path) -> Path:
    """Return the only sub-directory there is."""
    (only,) = sub_dirs(root)
    return only


def sub_dirs(root: Path) -> list[Path]:
    folder = RelayFolder(root, Flavor.MARIADB)
    return [folder.path(sub_dir) for sub_dir in folder.sub_dirs]


def main() -> None:
    """Relay until killed."""
    root, port, user, password, file = sys.argv[1:]
    address = ServerAddress("127.0.0.1", int(port), user, password)
    stream = StreamOptions(idle_s=0.02, heartbeat_s=5)
    options = RelayOptions(stream=stream, start=Start(file=file), sync_interval_s=0.02)
    RelayReceiver(Path(root), address, options).run()


if __name__ == "__main__":
    main()
