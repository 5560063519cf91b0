"""Ways: the Pumps that are started on copies are reached by the proxy of their machine, too.

Such a Pump listens on a free port of its machine's address and advertises it under the name of the
proxies. A thread looks which ports there are, and lets the machine's proxy listen on the same ones
at the addresses of the callers.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Final, Self

from tests.chaos.machine import listening
from tests.kit.crash.slow_proxy import SlowProxy

log = logging.getLogger(__name__)

_EVERY_S: Final = 0.05


class Ways:
    """Follows the ports of machines; use as a context manager."""

    def __init__(self, proxies: Mapping[str, SlowProxy]) -> None:
        """`proxies` are those before machines, by the machines' addresses."""
        self._proxies = proxies
        self._known: dict[str, set[int]] = {address: set() for address in proxies}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ways", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            ports = listening()
            for address, proxy in self._proxies.items():
                self._follow(address, proxy, ports.get(address, set()))

    def _follow(self, address: str, proxy: SlowProxy, ports: set[int]) -> None:
        known = self._known[address]
        for port in known - ports:
            proxy.unforward(port)
            known.discard(port)
        for port in ports - known:
            try:
                proxy.forward(port, f"{address}:{port}")
            except OSError as error:
                log.warning("there is no way to %s:%d yet: %s", address, port, error)
            else:
                known.add(port)
