"""What a Pump's start does with the entry of its log."""

from __future__ import annotations

import pytest

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segment import BEGIN
from pump.copies.claiming import Claimed, Displaced, Former, Wanted, begin_anew, claim
from pump.replicas.chain import Chain, Link
from tests.kit.fakes.log_entries import MemoryLogEntries

OWN, OTHER = Copy("pump-1", "disk-1"), Copy("pump-2", "disk-2")
WANTED = Wanted(2, 2)


def started(entries: MemoryLogEntries, chain: Chain) -> Claimed | None:
    return claim(entries, "pump-1", OWN, chain, WANTED)


def chain_of(epoch: int) -> Chain:
    return Chain([Link(0, epoch, BEGIN)])


def displaced(entries: MemoryLogEntries) -> Displaced:
    """Have another disk take over a log."""
    entries.swap("pump-1", 0, LogEntry(epoch=7, primary=OTHER, needed=3))
    with pytest.raises(Displaced) as caught:
        started(entries, chain_of(5))
    return caught.value


def test_every_start_claims_an_epoch_of_its_own() -> None:
    entries = MemoryLogEntries()
    for epoch in (1, 2):
        claimed = started(entries, chain_of(0))
        assert claimed is not None
        assert claimed.won[0].epoch == epoch


def test_a_log_that_another_disk_has_is_not_claimed() -> None:
    entries = MemoryLogEntries()
    assert "served by pump pump-2" in str(displaced(entries))
    found = entries.read("pump-1")
    assert found is not None
    assert found[0].epoch == 7


def test_a_disk_that_is_listed_anew_never_claims_with_what_it_had_before() -> None:
    entries = MemoryLogEntries()
    anew = begin_anew(entries, "pump-1", OWN, displaced(entries).found, WANTED)
    assert (anew.epoch, anew.since, anew.needed) == (8, 8, 0)
    for died in (chain_of(5), chain_of(0)):  # Before its folder was emptied, and after.
        with pytest.raises(Former, match="began anew in epoch 8"):
            started(entries, died)
    claimed = started(entries, chain_of(8))
    assert claimed is not None
    assert claimed.won[0].epoch == 9
    again = started(entries, Chain([Link(0, 8, BEGIN), Link(1, 9, BEGIN)]))
    assert again is not None
    assert again.won[0].since == 8
