"""A copy's folder holds what its primary sent, whatever its disk does at whatever call."""

import random

import pytest

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed
from penstock.log.segment import BEGIN, segment_name
from penstock.log.segments import Place
from pump.replication.protocol.messages import Append, Ask, Damaged, Have, Refusal
from tests.kit.replicas.shipping import LOG, Downstream, Upstream, check_same, ship

FAILURES = ("crash", "kill", "error")


def finish(up: Upstream, down: Downstream) -> None:
    """Ship all, through every failure that is still to come."""
    for _ in range(200):
        with down.failing():
            if ship(up, down):
                return
    raise AssertionError("the copy does not get on")


def run(seed: int, fail_at: dict[int, str], *, events: int = 12) -> int:
    """Live through a primary's history; return how often the copy's disk was called."""
    chance = random.Random(seed)
    up, down = Upstream(chance), Downstream(random.Random(seed))
    down.fail_at = fail_at
    for _ in range(events):
        up.live()
        if chance.random() < 0.2:
            up.append()
            with down.failing():
                ship(up, down)
            up.fail_sync()
        with down.failing():
            ship(up, down, pieces_max=chance.choice((1, 5, 1000)))
        if chance.random() < 0.1:
            up = deposed(up, down)
    finish(up, down)
    check_same(up, down)
    return down.calls


def deposed(up: Upstream, down: Downstream) -> Upstream:
    """Have another primary take over, while the first one continues for a while."""
    after = up.forked()
    up.write(up.chance.randint(0, 9))
    with down.failing():
        ship(up, down)
    if up.chance.random() < 0.5:  # Its own folder becomes the copy.
        up.append()
        up.segments.sync() if up.chance.random() < 0.5 else up.fail_sync()
        down.become(up)
    return after


def failures(seed: int) -> dict[int, str]:
    """Return at which calls the copy's disk fails, some of them soon after each other."""
    chance = random.Random(~seed)
    calls = chance.sample(range(1, 300), chance.choice((0, 1, 3, 10)))
    soon = [call + chance.randint(1, 9) for call in calls for _ in range(2)]
    return {call: chance.choice(FAILURES) for call in (*calls, *soon)}


def test_a_copy_that_no_disk_can_mend_begins_again_through_every_failure_of_its_disk() -> None:
    for failed_at in range(1, 14):
        for how in FAILURES:
            up, down = Upstream(random.Random(1)), Downstream(random.Random(failed_at))
            up.write(9)
            ship(up, down)
            node = down.files.nodes[LOG / segment_name(up.chain().end.segment)]
            node.data[:] = node.durable[:] = random.Random(1).randbytes(len(node.data))
            down.crash()
            damaged = down.log.answer(Ask(up.epoch), b"")
            assert isinstance(damaged, Damaged)
            assert down.log.answer(Ask(up.epoch), b"") == damaged
            with pytest.raises(Corrupt):
                down.log.answer(Ask(up.epoch, takes_damaged=False), b"")
            down.fail_at = {down.calls + failed_at: how}
            for _ in range(9):
                with down.failing():
                    if reinitialised(up, down):
                        break
            up.acked = None
            finish(up, down)
            check_same(up, down)


def reinitialised(up: Upstream, down: Downstream) -> bool:
    """Tell a damaged copy to begin again; return whether it has."""
    said = down.log.answer(Ask(up.epoch), b"")
    if not isinstance(said, Damaged):
        return True
    link = up.chain().links[0]
    request = Append(up.epoch, link.number, link.epoch, 0, BEGIN, None, None, 0, said.damage)
    return isinstance(down.log.answer(request, up.data(link.number, 0, BEGIN)), Have)


def test_a_deposed_primary_is_refused_and_nothing_is_changed() -> None:
    up, down = Upstream(random.Random(1)), Downstream(random.Random(1))
    up.write(3)
    ship(up, down)
    after = up.forked()
    ship(after, down)
    links = down.links()
    assert down.log.answer(Ask(up.epoch), b"") == Refusal(after.epoch)
    up.write(1)
    request = Append(up.epoch, 1, 1, BEGIN, up.segments.end.offset, None, None, 0)
    data = up.data(1, BEGIN, request.end)
    assert down.log.answer(request, data) == Refusal(after.epoch)
    assert down.links() == links
    check_same(after, down)


def test_a_request_that_contradicts_itself_is_refused_and_nothing_is_changed() -> None:
    up, down = Upstream(random.Random(1)), Downstream(random.Random(1))
    up.write(3)
    ship(up, down)
    up.segments.begin_next(1)
    number, _ = up.segments.end
    before = up.chain().find(number - 1)
    assert before is not None
    header = up.data(number, 0, BEGIN)
    sound = Append(1, number, 1, 0, BEGIN, before, None, 0)
    files = {path: bytes(node.data) for path, node in down.files.nodes.items()}
    lies: list[tuple[Append, bytes]] = [
        (sound, header[:-1]),
        (sound, header[:-1] + bytes((header[-1] ^ 1,))),
        (sound._replace(segment=number + 1), header),
        (sound._replace(segment_epoch=0), header),
        (sound._replace(epoch=2, segment_epoch=2), header),
        (sound._replace(segment_epoch=3), header),
        (sound._replace(previous=before._replace(number=0)), header),
        (sound._replace(previous=before._replace(end=before.end - 1)), header),
        (sound._replace(offset=7), header[7:]),
        (sound._replace(end=0), b""),
    ]
    for request, data in lies:
        with pytest.raises(Malformed) as refused:
            down.log.answer(request, data)
        assert refused.value.code is Code.COPY_MALFORMED
        assert {path: bytes(node.data) for path, node in down.files.nodes.items()} == files
    assert down.log.answer(sound, header) == Have(1, Place(number, BEGIN), 0)


@pytest.mark.parametrize("block", range(4))
def test_a_copy_becomes_its_primarys_log_whatever_fails_on_the_way(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        run(seed, failures(seed))


@pytest.mark.slow
def test_a_copy_becomes_its_primarys_log_in_a_long_sweep() -> None:
    for seed in range(1000, 5000):
        run(seed, failures(seed))


@pytest.mark.parametrize("failure", FAILURES)
def test_a_copy_survives_a_failure_at_each_call_of_its_disk(failure: str) -> None:
    for call in range(1, run(7, {}, events=5)):
        run(7, {call: failure}, events=5)


@pytest.mark.parametrize("block", range(3))
def test_a_copy_that_catches_up_many_groups_at_once_is_never_damaged(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        catch_up(seed)


def catch_up(seed: int) -> None:
    """Ship many groups in one piece while the disk fails; what is said to be there stays there."""
    chance = random.Random(seed)
    up, down = Upstream(chance, segment_bytes=1 << 20), Downstream(random.Random(seed))
    up.write(chance.randint(0, 3))
    ship(up, down)
    up.write(chance.randint(2, 12))
    first = down.calls + chance.randint(1, 9)  # While the piece is written and synced.
    second = first + chance.randint(1, 12)
    down.fail_at = {
        first: chance.choice(FAILURES),
        second: chance.choice(FAILURES),
        second + chance.randint(1, 12): "crash",
    }
    for _ in range(4):
        with down.failing():
            ship(up, down, piece_bytes=(1 << 20,))
    down.fail_at.clear()
    check_same(up, down)
    down.crash()
    ship(up, down, pieces_max=0)  # It has what it said that it has.
    finish(up, down)
    check_same(up, down)
