import errno
import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.node.metrics import Distribution
from penstock.pb import penstock_pb2
from pump.counters import COUNTS, SECONDS, SIZES_BYTES, Counters, MeteredFiles, reason_of
from pump.store.record import Contradiction, NoPrewrite, OutOfSpace
from pump.store.storage import Storage
from tests.kit.fakes.storage import SMALL, commit, prewrite, write


def test_a_value_counts_in_every_bucket_whose_bound_is_not_below_it() -> None:
    found = Distribution((1.0, 2.0, 4.0))
    for value in (0.5, 1, 1.5, 4, 99):
        found.note(value)
    assert found.buckets() == [(1.0, 2), (2.0, 3), (4.0, 4), (float("inf"), 5)]
    assert (found.count, found.sum) == (5, 106.0)


@pytest.mark.parametrize("bounds", [SECONDS, SIZES_BYTES, COUNTS])
def test_buckets_add_up_whatever_was_counted(bounds: tuple[float, ...]) -> None:
    chance, found = random.Random(3), Distribution(bounds)
    values = [bounds[0] * chance.lognormvariate(2, 3) for _ in range(500)]
    for value in values:
        found.note(value)
    for bound, count in found.buckets():
        assert count == sum(value <= bound for value in values)


@pytest.mark.parametrize("span_s", [1e-6, 1e-3, 10.0])
def test_a_falling_run_counts_as_its_values_do_one_by_one(span_s: float) -> None:
    chance = random.Random(5)
    values = sorted((chance.random() * span_s + 2e-5 for _ in range(300)), reverse=True)
    at_once, one_by_one = Distribution(SECONDS), Distribution(SECONDS)
    at_once.note_sorted(values)
    at_once.note_sorted([])
    for value in values:
        one_by_one.note(value)
    assert at_once.buckets() == one_by_one.buckets()
    assert at_once.sum == pytest.approx(one_by_one.sum)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OutOfSpace("full", code=Code.DISK_FULL), "no_space"),
        (NoPrewrite("none", code=Code.PREWRITE_MISSING), "no_prewrite"),
        (Contradiction("both"), "contradiction"),
        (Retryable("much", code=Code.ETCD_AWAY), "overloaded"),
        (PenstockError("?", code=Code.CLOSED), "other"),
    ],
)
def test_a_refusal_has_one_word_for_its_reason(error: Exception, word: str) -> None:
    assert reason_of(error) == word
    error.refusal = penstock_pb2.Refusal.NOT_ONLINE  # type: ignore[attr-defined]
    assert reason_of(error) == "not_online"


def test_what_the_log_writes_and_syncs_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = Counters()
    storage = Storage.open(tmp_path, SMALL, files=MeteredFiles(counters))
    syncs, size = counters.sync_s.count, counters.write_bytes.sum
    write(storage, prewrite(1), commit(1, 5))
    assert counters.sync_s.count == syncs + 1
    assert counters.write_s.count == counters.write_bytes.count
    stored = storage.stats()["log_bytes"]
    assert counters.write_bytes.sum - size == stored - 32
    failing = Mock(side_effect=OSError(errno.EIO, "made to fail"))
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(Retryable):
        storage.append([prewrite(9)])
    assert counters.sync_s.count == syncs + 2
    monkeypatch.undo()
    storage.close()
