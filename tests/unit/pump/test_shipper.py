"""What a shipper makes of what a copy answers, and when it calls the copy silent."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cluster.log_entry import Copy, Disk
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.log.segments import Place
from pump.replication import shipper
from pump.replication.peers import Peers
from pump.replication.protocol.messages import (
    Answer,
    Append,
    Ask,
    Followed,
    Have,
    ReplicaState,
    SignOfLife,
    decode_request,
    encode_answer,
)
from pump.replication.shipper import Shipper
from tests.kit.wait import eventually

COPY = Copy("pump-2", "d2")
TIMEOUT_S = 0.4
SIGNS_IN_TIMEOUT = 2
GROUP = Append(
    epoch=1, segment=0, segment_epoch=1, offset=32, end=32, previous=None, instead_of=None, needed=0
)


class Core:
    """Asks where the copy stands as soon as it is there, and then sends it a group.

    Time passes with each call, an eighth of the time-out, and never otherwise.
    """

    acknowledged = Place(0, 0)
    epoch = 1
    is_well = True
    now_s = 0.0

    def __init__(self) -> None:
        self.repair: Callable[[int], bool] = lambda number: False
        self.silent_s: list[float] = []
        self.has: list[Place] = []
        self.failures: list[str] = []
        self.begun = threading.Event()
        self.shipper: Shipper

    def read(self, number: int, begin: int, end: int) -> bytes:
        return b""

    def connected(self, disk: str) -> None:
        assert self.begun.wait(5)
        self.shipper.send(Ask(1))

    def answered(self, disk: str, answer: Answer) -> None:
        if isinstance(answer, ReplicaState):
            self.shipper.send(GROUP)
        elif isinstance(answer, Have):
            self.has.append(answer.place)

    def silent(self, disk: str) -> None:
        self.silent_s.append(self.now_s)

    def failed(self, what: str) -> None:
        self.failures.append(what)


class Line:
    """A connection that opens at once."""

    def __init__(self, *args: object) -> None:
        pass

    def connect(self, within_s: float) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def shipped(
    monkeypatch: pytest.MonkeyPatch,
    take: Callable[[Followed], Answer | None],
    core: Core | None = None,
) -> Iterator[Core]:
    """Ship to a copy that answers what `take` returns; what it raises is a refusal."""

    core, peers = core or Core(), Peers(1, Copy("pump-1", "d1"))

    def unary(channel: Any, method: str, sent: bytes, timeout_s: float) -> bytes:
        core.now_s += TIMEOUT_S / 8
        return encode_answer(1, take(decode_request(sent)[1]))

    monkeypatch.setattr(shipper, "Channel", Line)
    monkeypatch.setattr(shipper, "unary", unary)
    monkeypatch.setattr(shipper, "time", SimpleNamespace(monotonic=lambda: core.now_s))
    peers.disks = {COPY.disk: Disk(COPY.disk, COPY.pump, "somewhere:1")}
    core.shipper = Shipper(COPY, core, peers=peers, node_id="pump-1", timeout_s=TIMEOUT_S)
    core.begun.set()
    try:
        yield core
    finally:
        core.shipper.close()


def refuse() -> Answer:
    raise Retryable("no space left on device", code=Code.LOG_WRITE_FAILED)


def test_a_copy_on_a_full_disk_is_silent_although_it_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take(request: Followed) -> Answer | None:
        return ReplicaState(1, ()) if isinstance(request, Ask) else refuse()

    with shipped(monkeypatch, take) as core:
        eventually(lambda: len(core.silent_s) >= 2)
    assert TIMEOUT_S < core.silent_s[0] <= 2 * TIMEOUT_S


def test_a_copy_that_takes_what_it_refused_before_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = iter([refuse, refuse])
    signs: list[Followed] = []

    def take(request: Followed) -> Answer | None:
        if isinstance(request, SignOfLife):
            signs.append(request)
            return None
        if isinstance(request, Ask):
            return ReplicaState(1, ())
        return next(refusals, lambda: Have(1, Place(0, 32), 0))()

    with shipped(monkeypatch, take) as core:
        eventually(lambda: core.has == [Place(0, 32)])
        eventually(lambda: len(signs) > SIGNS_IN_TIMEOUT)
        assert core.silent_s == []


def test_a_copy_that_lacks_nothing_after_a_lost_answer_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([refuse])
    signs: list[Followed] = []

    def take(request: Followed) -> Answer | None:
        if isinstance(request, SignOfLife):
            signs.append(request)
            return None
        if isinstance(request, Ask):
            return ReplicaState(1, ())
        return next(answers, lambda: None)()

    with shipped(monkeypatch, take) as core:
        eventually(lambda: len(signs) > SIGNS_IN_TIMEOUT)
        assert core.silent_s == []


def test_a_primary_that_is_not_well_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    signs: list[Followed] = []
    wellness = iter([False] * SIGNS_IN_TIMEOUT)
    asked: list[int] = []

    def take(request: Followed) -> Answer | None:
        if isinstance(request, SignOfLife):
            signs.append(request)
            return None
        return ReplicaState(1, ()) if isinstance(request, Ask) else Have(1, Place(0, 32), 0)

    class Unwell(Core):
        @property
        def is_well(self) -> bool:  # type: ignore[override]
            assert not signs
            asked.append(1)
            return next(wellness, len(asked) > SIGNS_IN_TIMEOUT)

    with shipped(monkeypatch, take, Unwell()) as core:
        eventually(lambda: len(signs) == 1)
        assert len(asked) == SIGNS_IN_TIMEOUT + 1
        assert core.silent_s == []


def test_what_all_others_have_is_checked_once_before_a_copy_that_joins_is_sent_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def take(request: Followed) -> Answer | None:
        if isinstance(request, Ask):
            return ReplicaState(1, ())
        happened.append("sent")
        return Have(1, Place(0, 32), 0)

    def repair(segment: int) -> bool:
        happened.append(f"checked {segment}")
        return False

    ahead, level = Place(0, 33), Place(0, 32)
    for acknowledged, before in ((ahead, ["checked 0"]), (level, [])):
        happened.clear()
        learner = Core()
        learner.acknowledged, learner.repair = acknowledged, repair
        with shipped(monkeypatch, take, learner) as core:
            eventually(lambda: len(core.has) == 1)
            core.shipper.send(GROUP)
            eventually(lambda: len(core.has) == 2)
        assert happened[: len(before) + 1] == [*before, "sent"]
        assert happened.count("checked 0") == len(before)


def test_a_defect_of_a_shipper_is_reported_and_not_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(request: Followed) -> Answer | None:
        raise ZeroDivisionError

    with shipped(monkeypatch, take) as core:
        eventually(lambda: core.failures == ["what ships the log to pump pump-2"])
    assert "ZeroDivisionError" in caplog.text
