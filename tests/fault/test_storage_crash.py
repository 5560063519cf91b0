"""Whatever dies, and whatever unsynced bytes it takes along: nothing acknowledged is lost.

Writers here follow the protocol against one storage whose log is on a disk in memory. Machine and
process die at random moments, also in the middle of a group, and come back with a random part of
the unsynced sectors and with an index as it was, as it once was, or with none. One puller follows
the stream all the way and must see every committed transaction once, in order.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import Corrupt
from penstock.log.segment import BEGIN
from penstock.log.segments import Place, Position
from pump.store.index import Checkpoint, Open
from pump.store.record import Record
from pump.store.recovery import Progress
from pump.store.storage import Appended, Storage
from pump.store.transactions import Sorter
from tests.kit.fakes.files import MemoryFiles
from tests.kit.fakes.storage import (
    commit,
    commits,
    copy_index,
    die,
    fake,
    index_dump,
    opened,
    prewrite,
    pulled,
    put_index,
    rollback,
    write,
)

pytestmark = pytest.mark.fault


class Died(BaseException):
    """Not an `OSError`: no one catches the end of the process."""


class World:
    """A storage, its writers, its puller, and what each of them was promised."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.files = MemoryFiles()
        self.storage = opened(folder / "pump", self.files)
        self.now_ts = 0
        self.prewritten: set[int] = set()
        self.asked: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.rolled_back: set[int] = set()
        self.unindexed: list[Appended] = []
        self.pulled: list[tuple[int, int]] = []
        self.pulled_ts = 0
        self.deaths = 0

    def next_ts(self) -> int:
        self.now_ts += self.chance.randrange(1, 4)
        return self.now_ts

    def append(self, records: list[Record]) -> None:
        """Append until it is acknowledged, as writers do; returns when it is."""
        while True:
            try:
                self.unindexed.append(self.storage.append(records))
                break
            except Died:
                self.restart(self.chance.choice(["kill", "crash"]))
        while len(self.unindexed) > self.chance.randrange(3):
            self.storage.index(self.unindexed.pop(0))

    def begin(self) -> None:
        starts = [self.next_ts() for _ in range(self.chance.randrange(1, 5))]
        value = self.chance.randbytes(self.chance.randrange(200))
        self.append([prewrite(ts, value) for ts in starts])
        self.prewritten.update(starts)

    def ask(self) -> None:
        for start_ts in [ts for ts in self.prewritten if ts not in self.asked]:
            if self.chance.random() < 0.6:
                self.asked[start_ts] = self.next_ts()

    def commit(self) -> None:
        chosen = [ts for ts in self.asked if self.chance.random() < 0.6]
        self.chance.shuffle(chosen)
        self.append([commit(ts, self.asked[ts]) for ts in chosen])
        for start_ts in chosen:
            self.prewritten.discard(start_ts)
            self.committed[start_ts] = self.asked.pop(start_ts)

    def rollback(self) -> None:
        chosen = [ts for ts in self.prewritten - set(self.asked) if self.chance.random() < 0.4]
        self.append([rollback(ts) for ts in chosen])
        self.prewritten.difference_update(chosen)
        self.rolled_back.update(chosen)

    def repeat(self) -> None:
        """Writers that lost an answer say the same again, in any order."""
        known = [pair for pair in self.committed.items() if pair[1] > self.storage.purged_ts]
        again = [commit(*pair) for pair in known if self.chance.random() < 0.1]
        again += [rollback(ts) for ts in self.rolled_back if self.chance.random() < 0.1]
        self.append(again)

    def idle(self) -> None:
        self.append([fake(self.next_ts())])

    def pull(self) -> None:
        while True:
            piece = self.storage.pull(self.pulled_ts, bytes_max=400, count_max=7)
            for ts in self.asked.values():
                assert piece.last_ts < ts, "the stream overtook a transaction that will commit"
            if piece.last_ts <= self.pulled_ts:
                return
            assert self.pulled_ts < min(piece.commit_ts, default=piece.last_ts)
            starts = {ts: start for start, ts in self.committed.items()}
            for ts in piece.commit_ts:
                if ts in starts:
                    self.pulled.append((starts[ts], ts))
            self.pulled_ts = piece.last_ts

    def purge(self) -> None:
        self.storage.gc(self.pulled_ts - self.chance.randrange(30))
        assert self.storage.purged_ts <= self.pulled_ts

    def copy(self) -> None:
        """Remember the index as it is now; LevelDB must not be at work in it meanwhile."""
        die(self.storage)
        copy_index(self.folder / "pump", self.folder / "copy")
        self.files = self.files.after_kill()
        self.reopen()

    def die_in_the_next_group(self) -> None:
        call = self.chance.choice(["write", "sync", "create", "rename", "sync_folder"])

        def fail(name: str, path: Path) -> None:
            if name == call:
                self.files.fail = lambda call, path: None
                raise Died

        self.files.fail = fail

    def restart(self, how: str) -> None:
        self.deaths += 1
        path = self.folder / "pump"
        if how == "stop":
            while self.unindexed:
                self.storage.index(self.unindexed.pop(0))
            self.storage.close()
            self.files = self.files.after_kill()
        elif how == "kill":
            die(self.storage)
            self.files = self.files.after_kill()
        else:
            die(self.storage)
            self.files = self.files.after_crash(self.chance)
            lost = self.chance.choice(["nothing", "old", "all"])
            if lost == "all":
                put_index(path, None)
            elif lost == "old" and (self.folder / "copy").is_dir() and not self.storage.purged_ts:
                put_index(path, self.folder / "copy")
        self.reopen()

    def reopen(self) -> None:
        """Start again, and sometimes die again while recovering."""
        self.unindexed.clear()
        while True:
            if self.chance.random() < 0.1:
                self.die_in_the_next_group()
            try:
                self.storage = opened(self.folder / "pump", self.files)
                break
            except Died:
                self.deaths += 1
                self.files = self.files.after_crash(self.chance)
        self.files.fail = lambda call, path: None

    def finish(self) -> None:
        self.files.fail = lambda call, path: None
        for start_ts in self.prewritten:
            self.asked.setdefault(start_ts, self.next_ts())
        while self.asked:
            self.commit()
        self.idle()
        while self.unindexed:
            self.storage.index(self.unindexed.pop(0))
        self.pull()
        assert self.pulled == sorted(((s, ts) for s, ts in self.committed.items()), key=_by_commit)
        assert self.storage.max_commit_ts == self.now_ts
        assert self.storage.unmatched() == []
        after_ts = self.storage.purged_ts
        left = [pair for pair in self.pulled if pair[1] > after_ts]
        assert commits(self.storage, after_ts) == left
        self.storage.close()


def _by_commit(pair: tuple[int, int]) -> int:
    return pair[1]


STEPS: dict[str, Callable[[World], None]] = {
    "begin": World.begin,
    "ask": World.ask,
    "commit": World.commit,
    "rollback": World.rollback,
    "repeat": World.repeat,
    "idle": World.idle,
    "pull": World.pull,
    "purge": World.purge,
    "flush": lambda world: world.storage.flush(),
    "copy": World.copy,
    "die in the next group": World.die_in_the_next_group,
    "stop": lambda world: world.restart("stop"),
    "kill": lambda world: world.restart("kill"),
    "crash": lambda world: world.restart("crash"),
}
WEIGHTS = dict.fromkeys(STEPS, 2) | {"begin": 6, "ask": 6, "commit": 6, "purge": 1, "stop": 1}


def live(folder: Path, steps: list[str], seed: int) -> World:
    world = World(folder, random.Random(seed))
    for step in steps:
        try:
            STEPS[step](world)
        except Died:  # Within a purge.
            world.restart("crash")
    world.finish()
    return world


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.sampled_from([step for step, weight in WEIGHTS.items() for _ in range(weight)]),
        max_size=50,
    ),
    seed=st.integers(0, 2**32),
)
def test_every_history_is_pulled_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int
) -> None:
    live(tmp_path_factory.mktemp("world"), steps, seed)


def _random_run(folder: Path, seed: int) -> int:
    chance = random.Random(seed)
    steps = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=chance.randrange(20, 150))
    return live(folder, steps, seed).deaths


def test_long_runs_with_many_deaths_lose_nothing(tmp_path: Path) -> None:
    deaths = sum(_random_run(tmp_path / str(seed), seed) for seed in range(12))
    assert deaths > 50


@pytest.mark.slow
def test_a_thousand_runs_lose_nothing(tmp_path: Path) -> None:
    for seed in range(1000, 2000):
        _random_run(tmp_path / str(seed), seed)


def _filled(path: Path, files: MemoryFiles | None = None) -> Storage:
    storage = opened(path, files)
    for ts in range(10, 400, 10):
        ends = rollback(ts) if ts % 70 == 0 else commit(ts, ts + 5)
        write(storage, prewrite(ts, b"value %d" % ts * 5), fake(ts + 1), ends)
    write(storage, prewrite(1000, b"open"), prewrite(1001, b"open too"), commit(1001, 1002))
    return storage


@pytest.mark.fault(
    "index deleted (`rm -r` after a stop and after a kill)",
    "rebuilt, identical entry by entry",
    cases="2",
)
def test_a_deleted_index_is_rebuilt_identically(tmp_path: Path) -> None:
    storage = _filled(tmp_path)
    dump, stream, max_commit_ts = index_dump(storage), pulled(storage), storage.max_commit_ts
    for stop in (Storage.close, die):
        stop(storage)
        put_index(tmp_path, None)
        storage = opened(tmp_path)
        assert index_dump(storage) == dump
        assert pulled(storage) == stream
        assert storage.max_commit_ts == max_commit_ts
        assert [u.start_ts for u in storage.unmatched()] == [1000]
    storage.close()


def test_a_kill_between_append_and_index_loses_nothing(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    storage.append([prewrite(1), commit(1, 5)])
    die(storage)
    storage = opened(tmp_path)
    assert commits(storage) == [(1, 5)]
    storage.close()


def test_an_old_open_transaction_does_not_lengthen_the_replay(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path, files)
    write(storage, prewrite(1, b"slow"), fake(5), prewrite(6, b"slow too"))
    for ts in range(10, 400, 10):
        write(storage, prewrite(ts, b"a quick one" * 9), commit(ts, ts + 5))
    stream = storage.max_commit_ts
    storage.flush()
    write(storage, rollback(6))
    die(storage)
    storage = opened(tmp_path, files.after_kill())
    assert storage.stats()["replayed_records"] == 1
    assert storage.max_commit_ts == stream == 0
    assert [(u.start_ts, u.payload_reader()) for u in storage.unmatched()] == [
        (1, prewrite(1, b"slow").payload)
    ]
    assert storage.gc(300) == 0, "its segment is still needed"
    write(storage, commit(1, 1000))
    assert len(commits(storage)) == 40
    storage.close()


def test_a_checkpoint_has_room_for_so_many_open_transactions_and_begins_at_the_next() -> None:
    sorter = Sorter()
    for n in range(1, 5):
        sorter.push_fake(n * 10)
        sorter.push_prewrite(n * 10 + 1, Position(0, n * 100, 9), 0)
    listed = tuple((n * 10 + 1, Open(Position(0, n * 100, 9), n * 10, 0)) for n in range(1, 5))
    head = Place(0, 500)
    assert sorter.checkpoint(head, 4) == Checkpoint(head, 40, listed)
    assert sorter.checkpoint(head, 2) == Checkpoint(Place(0, 300), 30, listed[:2])
    assert sorter.checkpoint(head, 0) == Checkpoint(Place(0, 100), 10)


def test_a_long_replay_reports_its_progress_every_two_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now_s = [0.0]
    progress = Progress(clock=lambda: now_s[0])
    for tick in range(101):
        now_s[0] = tick * 0.5
        progress(tick * 50_000_000, 5_000_000_000)
    assert len(caplog.messages) == 24
    assert caplog.messages[11].endswith("48 % of 5000 MB, 100 MB/s, about 26 s left")


@pytest.mark.fault("index ahead of the log (each segment cut to each length)")
@pytest.mark.fault("index ahead of the log: and the index is gone")
def test_an_index_ahead_of_a_synced_log_is_an_alarm(tmp_path: Path) -> None:
    files = MemoryFiles()
    storage = _filled(tmp_path, files)
    die(storage)
    end = storage._segments.end.offset
    last = max(files.nodes)
    whole = files.nodes[last].data[:end]
    files.nodes[last].data = whole[:-1]
    with pytest.raises(Corrupt, match="the file ends here") as raised:
        opened(tmp_path, files.after_kill())
    assert raised.value.path == str(last)
    for lost in (1, 100, end - BEGIN):  # An older copy of a file that is extended ahead.
        files.nodes[last].data = whole[:-lost] + bytes(5000 + lost)
        with pytest.raises(Corrupt) as raised:
            opened(tmp_path, files.after_kill())
        assert raised.value.path == str(last)
        assert raised.value.offset <= end - lost


@pytest.mark.fault(
    "torn tail, every length (cut)",
    "cut off and logged with its offset; appends continue",
    cases="142 lengths, of groups of 1 and 3",
)
@pytest.mark.parametrize("group", [1, 3])
def test_the_last_group_cut_at_every_byte_never_hurts_the_ones_before(
    tmp_path: Path, group: int
) -> None:
    files = MemoryFiles()
    storage = opened(tmp_path / "pump", files)
    write(storage, prewrite(1), commit(1, 2))
    acknowledged = {path: bytes(node.data) for path, node in files.nodes.items()}
    copy_index(tmp_path / "pump", tmp_path / "copy")
    storage.append([prewrite(ts, b"cut") for ts in range(10, 10 + group)])
    die(storage)
    (path,) = files.nodes
    whole = bytes(files.nodes[path].data)
    for length in range(len(acknowledged[path]), len(whole) + 1):
        cut = MemoryFiles()
        cut.create(path).write([whole[:length]], 0)
        put_index(tmp_path / "pump", tmp_path / "copy")
        storage = opened(tmp_path / "pump", cut)
        survivors = [u.start_ts for u in storage.unmatched()]
        assert survivors == list(range(10, 10 + len(survivors)))
        assert (len(survivors) == group) == (length == len(whole))
        write(storage, prewrite(10, b"cut"), commit(10, 50))
        for start_ts in range(11, 10 + group):
            write(storage, rollback(start_ts))
        assert commits(storage) == [(1, 2), (10, 50)]
        die(storage)
