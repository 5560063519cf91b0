"""Merged binlogs per second of CPU, by how many Pumps there are; the baseline is `heapq.merge`.

Every Pump's stream comes in messages as a puller hands them on, each Pump having its share of the
room before the merge. Both ways get the same bytes and leave the same order behind. Binlogs are
counted against CPU time: one thread works, and what else the machine does is not its business.
"""

import gc
import heapq
import math
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from drainer.intake.merger import Merger
from tests.bench.rig import Figure, sized

PUMPS = (1, 5, 10, 50, 200)
BINLOGS = sized(400_000, 40_000)
BINLOG_BYTES = 200
MESSAGE_BYTES = 1 << 20
SMALL_MESSAGE_BYTES = 4 << 10
ROOM_BYTES = 16 << 20
ROUNDS = 3
TS_BEGIN = 450_000_000_000_000_000

Stream = tuple[list[int], list[bytes]]


def streams(pumps: int) -> list[Stream]:
    """Return the Pumps' streams: each binlog is at a random one of them."""
    rng = random.Random(pumps)
    found: list[Stream] = [([], []) for _ in range(pumps)]
    ts = TS_BEGIN
    for number in range(BINLOGS):
        ts += rng.randrange(1, 1000)
        stamps, payloads = found[rng.randrange(pumps)]
        stamps.append(ts)
        payloads.append(number.to_bytes(8, "big") * (BINLOG_BYTES // 8))
    # Every Pump continues to the end, as fake binlogs make an idle one do.
    for stamps, payloads in found:
        stamps.append(ts + 1)
        payloads.append(b"the last one, on each of them")
    return found


def messages(stream: Stream, message_bytes: int) -> Iterator[Stream]:
    """Yield a stream as a Pump sends it."""
    each = message_bytes // BINLOG_BYTES
    for at in range(0, len(stream[0]), each):
        yield stream[0][at : at + each], stream[1][at : at + each]


def merged(found: list[Stream], message_bytes: int) -> tuple[float, int, int]:
    """Return CPU seconds, how many binlogs came out, and the last one's commit_ts."""
    coming = {str(n): list(messages(s, message_bytes))[::-1] for n, s in enumerate(found)}
    merger = Merger(0)
    for source in coming:
        merger.add(source)
    share, count, last_ts = ROOM_BYTES // len(found), 0, 0
    begun = time.process_time()
    while coming:
        for source, left in list(coming.items()):
            while left and merger.bytes_of(source) <= share:
                merger.push(source, *left.pop())
            if not left:
                del coming[source]
        while (run := merger.take()) is not None:
            count += len(run.commit_ts)
            last_ts = run.commit_ts[-1]
    return time.process_time() - begun, count, last_ts


def heap_merged(found: list[Stream]) -> tuple[float, int, int]:
    """Do the same with `heapq.merge`, one binlog after the other; duplicates stay."""
    begun = time.process_time()
    count, last_ts = 0, 0
    pairs = heapq.merge(*(zip(*stream, strict=True) for stream in found))
    while run := list(islice(pairs, MESSAGE_BYTES // BINLOG_BYTES)):
        count += len(run)
        last_ts = run[-1][0]
    return time.process_time() - begun, count, last_ts


def measure(home: Path) -> Iterator[Figure]:
    """Yield one figure for each number of Pumps; `growth` is cost over that with one Pump."""
    alone_s = 0.0
    for pumps in PUMPS:
        found = streams(pumps)
        gc.collect()
        gc.freeze()
        ours = [merged(found, MESSAGE_BYTES) for _ in range(ROUNDS)]
        small = [merged(found, SMALL_MESSAGE_BYTES) for _ in range(ROUNDS)]
        heap = [heap_merged(found) for _ in range(ROUNDS)]
        gc.unfreeze()
        assert ours[0][1:] == small[0][1:] == (BINLOGS + 1, found[0][0][-1])
        assert heap[0][1:] == (BINLOGS + pumps, found[0][0][-1])
        ours_s, small_s, heap_s = (min(s for s, _, _ in each) for each in (ours, small, heap))
        alone_s = alone_s or ours_s
        detail = {
            "baseline": "heapq.merge",
            "cpu_us_per_binlog": round(ours_s / BINLOGS * 1e6, 3),
            "growth": round(ours_s / alone_s, 2),
            "log2_of_pumps": round(math.log2(pumps), 2),
            "in_messages_of_4_kib": round(BINLOGS / small_s),
        }
        yield Figure(f"merge.k{pumps}", BINLOGS / ours_s, "binlogs/s", BINLOGS / heap_s, detail)
