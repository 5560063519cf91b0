from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pumpclient.delivery.write_queue import InFlight, PendingWrite, WriteQueue
from pumpclient.errors import Failure, Reason
from tests.kit.wait import eventually, is_within

MakeQueue = Callable[..., WriteQueue]
LOST = Failure(Reason.BROKEN, "", maybe_stored=True)


@pytest.fixture
def make_queue() -> Callable[..., WriteQueue]:
    def make(**bounds: int) -> WriteQueue:
        defaults = {
            "batch_count_max": 256,
            "batch_bytes_max": 1 << 20,
            "in_flight_max": 4,
            "bytes_max": 1 << 20,
        }
        return WriteQueue(**{**defaults, **bounds})

    return make


def put(queue: WriteQueue, payload: bytes = b"x") -> PendingWrite:
    pending = PendingWrite(payload)
    queue.put(pending, 0)
    return pending


def sleeps(queue: WriteQueue) -> bool:
    """Return whether the sender has found nothing to take and waits to be woken."""
    return queue._sleeper is not None


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_a_take_carries_off_all_that_is_queued_in_order(make_queue: MakeQueue) -> None:
    queue = make_queue()
    writes = [put(queue) for _ in range(10)]
    assert queue.take(InFlight()) == writes


def test_a_batch_is_bounded_in_count_and_in_bytes(make_queue: MakeQueue) -> None:
    queue = make_queue(batch_count_max=3, batch_bytes_max=100)
    sizes = [10, 10, 10, 60, 50, 500, 10]
    for size in sizes:
        put(queue, b"x" * size)
    in_flight = InFlight()
    taken: list[list[int]] = []
    while sum(map(len, taken)) < len(sizes):
        writes = queue.take(in_flight)
        assert writes is not None
        taken.append([len(p.payload) for p in writes])
        queue.acked(in_flight)
    # A payload over the bound still travels, alone.
    assert taken == [[10, 10, 10], [60], [50], [500], [10]]


def test_no_more_batches_than_allowed_are_in_flight(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(in_flight_max=2, batch_count_max=1), InFlight()
    for _ in range(3):
        put(queue)
    first = queue.take(in_flight)
    queue.take(in_flight)
    third: list[list[PendingWrite] | None] = []
    waiting = in_thread(lambda: third.append(queue.take(in_flight)))
    eventually(lambda: sleeps(queue))
    assert queue.acked(in_flight) == first
    waiting.join(5)
    assert third[0] is not None
    assert len(third[0]) == 1


def test_writes_gather_while_a_batch_is_in_flight_until_they_are_many(
    make_queue: MakeQueue,
) -> None:
    queue, in_flight = make_queue(), InFlight()
    put(queue)
    queue.take(in_flight)
    got: list[list[PendingWrite] | None] = []
    sender = in_thread(lambda: got.append(queue.take(in_flight)))
    eventually(lambda: sleeps(queue))
    for _ in range(31):
        put(queue)
    assert sleeps(queue)
    put(queue)
    sender.join(5)
    assert got[0] is not None
    assert len(got[0]) == 32


def test_a_sleeping_sender_wakes_for_a_write(make_queue: MakeQueue) -> None:
    queue = make_queue()
    got: list[list[PendingWrite] | None] = []
    sender = in_thread(lambda: got.append(queue.take(InFlight())))
    eventually(lambda: sleeps(queue))
    write = put(queue)
    sender.join(5)
    assert got == [[write]]


def test_a_thread_waits_until_its_write_is_finished(make_queue: MakeQueue) -> None:
    queue = make_queue()
    write = put(queue)
    queue.take(InFlight())
    waiting = in_thread(lambda: write.settle(10))
    eventually(lambda: is_within(waiting, "settle"))
    write.finish(None)
    waiting.join(5)
    assert write.failure is None


def test_a_write_that_was_not_sent_in_time_never_is(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(), InFlight()
    late, next_one = put(queue), put(queue)
    failure = late.settle(0)
    assert failure is not None
    assert not failure.maybe_stored
    assert queue.take(in_flight) == [next_one]


def test_a_write_that_was_sent_may_be_stored_although_no_one_answered(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    write = put(queue)
    queue.take(InFlight())
    failure = write.settle(0)
    assert failure is not None
    assert failure.maybe_stored


def test_the_first_word_about_a_write_stands(make_queue: MakeQueue) -> None:
    write = put(make_queue())
    write.finish(None)
    write.finish(LOST)
    assert write.settle(0) is None


def test_a_full_queue_makes_writers_wait_for_room(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(bytes_max=100), InFlight()
    put(queue, b"x" * 90)
    refused = put(queue, b"y" * 20)
    failure = refused.settle(0)
    assert failure is not None
    assert failure.reason is Reason.BUSY
    patient = PendingWrite(b"z" * 20)
    waiting = in_thread(lambda: queue.put(patient, 10))
    eventually(lambda: is_within(waiting, "_room"))
    queue.take(in_flight)
    waiting.join(5)
    queue.acked(in_flight)
    assert queue.take(in_flight) == [patient]


def test_one_write_larger_than_the_whole_bound_may_pass_alone(make_queue: MakeQueue) -> None:
    queue = make_queue(bytes_max=100)
    huge = put(queue, b"x" * 1000)
    assert queue.take(InFlight()) == [huge]


def test_a_session_that_ends_returns_what_it_had_in_flight_and_keeps_the_rest(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(batch_count_max=1)
    in_flight = InFlight()
    first, second = put(queue), put(queue)
    queue.take(in_flight)
    assert queue.end(in_flight) == [first]
    assert queue.take(in_flight) is None
    assert queue.take(InFlight()) == [second]


def test_what_never_reached_the_pump_is_put_back_in_front(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(), InFlight()
    writes = [put(queue), put(queue)]
    queue.take(in_flight)
    later = put(queue)
    queue.put_back(queue.end(in_flight))
    assert queue.take(InFlight()) == [*writes, later]


def test_a_closed_queue_sends_what_it_has_and_refuses_more(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(), InFlight()
    write = put(queue)
    queue.close()
    refused = put(queue)
    assert refused.settle(0) is not None
    assert queue.wait_for_work(InFlight())
    assert queue.take(in_flight) == [write]
    assert queue.take(in_flight) is None
    assert not queue.wait_for_work(InFlight())


def test_many_threads_lose_no_write(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(batch_count_max=7), InFlight()
    taken: list[PendingWrite] = []

    def send() -> None:
        while (batch := queue.take(in_flight)) is not None:
            taken.extend(batch)
            for pending in queue.acked(in_flight):
                pending.finish(None)

    def write() -> None:
        for _ in range(200):
            pending = PendingWrite(b"x")
            queue.put(pending, 5)
            assert pending.settle(5) is None

    sender = in_thread(send)
    writers = [in_thread(write) for _ in range(8)]
    for writer in writers:
        writer.join()
    queue.close()
    sender.join(5)
    assert len(taken) == 1600


def test_much_at_once_travels_in_two_halves_so_that_neither_side_waits(
    make_queue: MakeQueue,
) -> None:
    queue, in_flight = make_queue(), InFlight()
    queue.put_all([PendingWrite(b"x") for _ in range(200)], 0)
    sizes = [len(queue.take(in_flight) or ()) for _ in range(2)]
    assert sizes == [100, 100]
    for _ in range(3):
        again = [PendingWrite(b"x") for _ in queue.acked(in_flight)]
        queue.put_all(again, 0)
        assert queue.take(in_flight) == again


def test_many_writes_wake_the_sender_once(make_queue: MakeQueue) -> None:
    queue, taken = make_queue(), []
    thread = in_thread(lambda: taken.append(queue.take(InFlight())))
    eventually(lambda: sleeps(queue))
    writes = [PendingWrite(b"x") for _ in range(50)]
    queue.put_all(writes, 0)
    thread.join(5)
    assert taken == [writes]


def test_writes_without_room_fail_and_those_before_them_do_not(make_queue: MakeQueue) -> None:
    queue = make_queue(bytes_max=10)
    writes = [PendingWrite(bytes(4)) for _ in range(4)]
    queue.put_all(writes, 0.01)
    failures = [p.settle(0) for p in writes[2:]]
    assert [f and (f.reason, f.maybe_stored) for f in failures] == [(Reason.BUSY, False)] * 2
    assert queue.take(InFlight()) == writes[:2]


def test_waiting_for_room_wakes_the_sender_first(make_queue: MakeQueue) -> None:
    queue, in_flight = make_queue(bytes_max=10), InFlight()
    thread = in_thread(
        lambda: queue.take(in_flight) and queue.acked(in_flight) and queue.take(in_flight)
    )
    eventually(lambda: sleeps(queue))
    writes = [PendingWrite(bytes(4)) for _ in range(4)]
    queue.put_all(writes, 5)
    thread.join(5)
    assert list(in_flight.batches) == [writes[2:]]


def test_the_end_of_a_write_may_bring_the_next_one(make_queue: MakeQueue) -> None:
    queue = make_queue()
    ended: list[PendingWrite] = []

    def again(pending: PendingWrite) -> None:
        ended.append(pending)
        put(queue)

    write = PendingWrite(b"x", on_end=again)
    queue.put(write, 0)
    queue.fail_queued(Failure(Reason.BROKEN, "gone", maybe_stored=False))
    assert ended == [write]
    assert len(queue.take(InFlight()) or ()) == 1
