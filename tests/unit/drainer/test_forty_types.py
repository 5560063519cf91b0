"""40 types with their extreme values, as TiDB-Binlog's own writer puts them into a file."""

import asyncio
import hashlib
from pathlib import Path
from typing import cast

from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.forty_types import FortyTypes

OF_TIDB_BINLOG = "1c9ad38a95ead1360772bd17484793966b8ba343a60ef3780b8a63b029498c4a"
"""SHA-256 of what tests/kit/files/original_writer made of the same binlogs, with TZ=UTC."""


def test_a_file_is_byte_for_byte_what_tidb_binlogs_own_writer_makes(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/files"
    way = Way(url=url, folder=tmp_path / "drainer", strategy="events")
    asyncio.run(run_drainer(cast(Bank, FortyTypes()), way))
    (file,) = (tmp_path / "files").glob("binlog-*")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == OF_TIDB_BINLOG
