"""What every sink promises about its checkpoint, whether it writes tables, messages or a lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drainer.sink_contract import CheckpointContract
from tests.contract.test_event_sink import OUTPUTS, output_of, param
from tests.contract.test_lake_sink import Lake
from tests.contract.test_sink import SERVERS, table_downstream


class TestEverySink(CheckpointContract):
    @pytest.fixture(params=["sqlite", *SERVERS, *map(param, OUTPUTS), "lake"])
    def downstream(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
        """A downstream that sinks are opened for, and that shows the ids of its rows."""
        made: Any
        if request.param == "lake":
            made = Lake(tmp_path / "lake")
        elif request.param in OUTPUTS:
            made = output_of(OUTPUTS[request.param](tmp_path, request))
        else:
            made = table_downstream(request.param, request, tmp_path)
        yield made
        for sink in made.sinks:
            sink.close()
