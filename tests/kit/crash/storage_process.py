"""A storage at work in a process of its own, which a failpoint ends: `python -m
tests.kit.crash.storage_process`.

Passes every step that a storage knows: groups, rotation, flushes, purges, a clean stop, a start
after a death. What is promised is printed before the next step, one line each, for the test to
hold the survivors against:

    issued START COMMIT   about to append this Commit
    acked START COMMIT    it was acknowledged
    purging TS            about to purge what is before TS
"""

import sys
from pathlib import Path

from pump.store.storage import Storage, StorageConfig
from tests.kit.fakes.storage import commit, die, opened, prewrite, write

CONFIG = StorageConfig(stop_write_at_available_bytes=0, segment_bytes_max=4000)
ROUNDS = 12
GROUP = 4


def live(folder: Path, ts: int) -> int:
    """Do everything once, from start to clean stop; return the last timestamp used."""
    storage = opened(folder, config=CONFIG)
    for number in range(ROUNDS):
        starts = range(ts, ts + GROUP)
        write(storage, *(prewrite(start, b"some rows " * 20) for start in starts))
        pairs = [(start, start + GROUP) for start in starts]
        for pair in pairs:
            say("issued", *pair)
        appended = storage.append([commit(*pair) for pair in pairs])
        for pair in pairs:
            say("acked", *pair)
        storage.index(appended)
        ts += 2 * GROUP
        if number % 4 == 3:
            storage.flush()
        if number % 6 == 5:
            say("purging", ts - 3 * GROUP)
            storage.gc(ts - 3 * GROUP)
    write(storage, prewrite(ts, b"left open"))
    storage.close()
    return ts + 1


def leave_torn(folder: Path, ts: int) -> None:
    """Leave what a death in the middle of a write leaves: no flush, and half a frame."""
    storage = opened(folder, config=CONFIG)
    write(storage, prewrite(ts), commit(ts, ts + 1))
    say("issued", ts, ts + 1)
    say("acked", ts, ts + 1)
    torn(storage, folder)


def torn(storage: Storage, folder: Path) -> None:
    """Let `storage` die and put half a frame after its log."""
    die(storage)
    last = max((folder / "log").glob("*.seg"))
    with last.open("ab") as log:
        log.write(b"PBL1 half a frame")


def say(*words: object) -> None:
    """Print one line at once: the next moment may not come."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    now_ts = live(where, int(sys.argv[2]))
    leave_torn(where, now_ts)
    live(where, now_ts + 2)
