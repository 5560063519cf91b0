"""A relay in a process of its own, to be killed; arguments: folder, port, user, password, file."""

from __future__ import annotations

import sys
from pathlib import Path

from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.relay.receiver import RelayOptions, RelayUnit
from pumpclient.mysql.relay.resume import Start


def main() -> None:
    """Relay until killed."""
    root, port, user, password, file = sys.argv[1:]
    address = ServerAddress("127.0.0.1", int(port), user, password)
    stream = StreamOptions(idle_s=0.02, heartbeat_s=5)
    options = RelayOptions(stream=stream, start=Start(file=file), sync_interval_s=0.02)
    RelayUnit(Path(root), address, options).run()


if __name__ == "__main__":
    main()
