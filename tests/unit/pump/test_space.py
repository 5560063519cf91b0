import logging
from pathlib import Path

import pytest

from pump.store.record import OutOfSpace
from pump.store.space import Reserve, default_reserve_bytes
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import commit, fake, prewrite

MIB = 1 << 20


@pytest.mark.parametrize(
    ("volume_bytes", "reserve_bytes"),
    [
        (8 * MIB, 2 * MIB),
        (256 * MIB, 64 * MIB),
        (1000 * MIB, 64 * MIB),
        (50_000 * MIB, 1000 * MIB),
        (8 << 40, 10 << 30),
    ],
)
def test_the_default_fits_the_volume(volume_bytes: int, reserve_bytes: int) -> None:
    assert default_reserve_bytes(volume_bytes) == reserve_bytes


def test_a_group_that_would_eat_into_the_reserve_is_refused_before_it_does() -> None:
    files = MemoryFiles()
    reserve = Reserve(files, Path("/v"), 1000)
    files.free_bytes = 3000
    assert reserve.refused([prewrite(1, bytes(1000))]) == {}
    refused = reserve.refused([prewrite(1, bytes(1500)), commit(2, 3), prewrite(4, bytes(1500))])
    assert sorted(refused) == [0, 2]
    assert isinstance(refused[0], OutOfSpace)
    reserve.check()
    files.free_bytes = 500
    assert sorted(reserve.refused([commit(2, 3), fake(9)])) == [0, 1]


def test_the_log_says_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    files = MemoryFiles()
    reserve = Reserve(files, Path("/v"), 1000)
    for free_bytes in (5000, 900, 800, 5000, 6000):
        files.free_bytes = free_bytes
        reserve.refused([commit(1, 2)])
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("/v has 900 bytes left: no new transactions until there are more")
    assert first.endswith("[PS-3009]"), "what an operator must act on has its code"
    assert second == "/v has 5000 bytes left: new transactions are taken again"
