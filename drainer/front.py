"""What others reach a Drainer by, whatever it does just then: its name, its port, its pages.

The port and the pages stay while the Drainer changes from a standby to the active one and back;
only who answers there changes (`Role`).
"""

from __future__ import annotations

import logging
from typing import Any

from drainer.cluster.server import Role, Services, build_server, listen, reached_at
from drainer.settings.config import DrainerConfig
from drainer.startup.parts import Parts
from penstock.node.http_status import HttpStatus

log = logging.getLogger(__name__)

_SERVER_GRACE_S = 1.0


class Front:
    """One Drainer's port and pages."""

    def __init__(self, config: DrainerConfig, parts: Parts) -> None:
        """Bind the port; serve nothing yet. `NeedsOperator` for a port or a name that cannot be."""
        self._config = config
        self._security = parts.security
        self._server: Any = build_server(parts.security)
        self._port = listen(self._server, config.addr, parts.security)
        self._services = Services()
        self._services.add_to(self._server)
        self.address = reached_at(config, self._port)
        self.node_id = parts.home.node_id(config.node_id, self.address)
        self.pages = HttpStatus(self._title)
        self._is_started = False

    @property
    def _title(self) -> str:
        return f"Drainer {self.node_id} at {self.address}"

    async def serve(self, role: Role) -> None:
        """Let `role` answer from now on; the first call opens the doors."""
        self._services.role = role
        self.pages.begin_anew(self._title)
        role.add_pages(self.pages)
        if not self._is_started:
            self._is_started = True
            await self._server.start()
            await self.pages.start(self._config.status_addr, self._port, self._security)

    async def close(self) -> None:
        """Answer no more."""
        await self._server.stop(_SERVER_GRACE_S)
        await self.pages.close()
