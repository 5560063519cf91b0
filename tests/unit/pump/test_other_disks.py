"""What a Pump sees of a log on another disk, to compare it with its own."""

from pathlib import Path

import pytest

from penstock.cluster.log_entry import Copy, Disk
from penstock.log.segment import segment_name
from penstock.log.segments import Segments
from pump.replication.peers import PeerDisk, Peers
from pump.replication.protocol.chain import Chain, Link, Seen
from pump.replication.protocol.messages import Stretch
from pump.replication.replicas import _edges


class Folder(PeerDisk):
    """A disk that is read without a network, as its Pump reads it."""

    def __init__(self, folder: Path) -> None:
        peers = Peers(7, Copy("pump-1", "d1"))
        super().__init__(Disk("d2", "pump-2", "h:1"), peers, "pump-1")
        self.folder = folder

    def _read(self, wanted: Stretch) -> bytes:
        if wanted.edges:
            return _edges(self.folder)
        data = (self.folder / segment_name(wanted.segment)).read_bytes()
        return data[wanted.offset : wanted.offset + wanted.length]


@pytest.fixture
def log(tmp_path: Path) -> Segments:
    found = Segments.open(tmp_path)
    for epoch in (1, 2, 4):
        found.begin_next(epoch, 10 + epoch)
        found.append([b"a group"])
        found.sync()
    return found


def links(log: Segments) -> list[Link]:
    return [Link(*link) for link in log.links()]


def test_the_same_log_is_seen_from_its_last_segment_on(log: Segments, tmp_path: Path) -> None:
    own = links(log)
    assert Folder(tmp_path).seen(Chain(own)) == Seen(Copy("pump-2", "d2"), (own[0], own[-1]))


def test_a_log_is_seen_from_where_it_parts(log: Segments, tmp_path: Path) -> None:
    own = links(log)
    seen = Folder(tmp_path).seen(Chain([*own[:3], Link(3, 3, 90, 13)]))
    assert seen is not None
    assert [link[:2] for link in seen.links] == [(0, 0), (2, 2), (3, 4)]
    assert seen.links[-1].end > 32
    assert seen.links[-1].epoch_id == 14


def test_frames_after_the_own_end_are_seen(log: Segments, tmp_path: Path) -> None:
    own = links(log)
    log.append([b"one more"])
    log.sync()
    seen = Folder(tmp_path).seen(Chain(own))
    assert seen is not None
    assert seen.links[-1].end > own[-1].end


def test_a_disk_without_the_log_has_nothing_and_one_that_fails_is_not_seen(tmp_path: Path) -> None:
    assert Folder(tmp_path).seen(Chain([Link(0, 0, 90)])) == Seen(Copy("pump-2", "d2"), ())
    (tmp_path / segment_name(0)).mkdir()
    assert Folder(tmp_path).seen(Chain([Link(0, 0, 90)])) is None
