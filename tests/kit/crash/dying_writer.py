"""The example's shop, killed by itself at a chosen moment of one order.

python -m tests.kit.crash.dying_writer MOMENT DATABASE ETCD_URLS ORDER
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from deploy.examples.outbox import open_database, order
from penstock import outbox
from pumpclient import PumpClient
from pumpclient.delivery.session import Session

BEFORE_THE_ROW = "before-the-row"
BEFORE_THE_LOCAL_COMMIT = "before-the-local-commit"
BEFORE_THE_COMMIT_BINLOG = "before-the-commit-binlog"


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    moment, database, etcd_urls, number = sys.argv[1:]
    if moment == BEFORE_THE_ROW:
        outbox.put = _die
    elif moment == BEFORE_THE_LOCAL_COMMIT:
        outbox.forget = _die
    else:
        assert moment == BEFORE_THE_COMMIT_BINLOG
        Session.commit = _die  # type: ignore[method-assign]
    with PumpClient.connect(etcd_urls) as client:
        order(client, open_database(Path(database)), int(number), item=1)


if __name__ == "__main__":
    main()
