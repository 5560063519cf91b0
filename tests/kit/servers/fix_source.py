"""A `mysql-source` with a Pump of its own, for a test to start, kill and ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.etcd import EtcdServer
from tests.kit.servers.source_rig import SourceRig


@pytest.fixture
def rig(
    etcd: Any, etcd_server: EtcdServer, pump_factory: Any, tmp_path: Path
) -> Iterator[SourceRig]:
    """Its source is begun by the test, and stopped at its end."""
    made = SourceRig(etcd, etcd_server.url, pump_factory, tmp_path / "source")
    yield made
    made.close()
