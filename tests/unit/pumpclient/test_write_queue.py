import threading
from collections.abc import Callable

from pumpclient.delivery.write_queue import InFlight, PendingWrite, WriteQueue
from pumpclient.errors import Failure, Reason
from tests.kit.wait import eventually, is_within

LOST = Failure(Reason.BROKEN, "", maybe_stored=True)


def make_queue(**bounds: int) -> WriteQueue:
    defaults = {"batch_count_max": 256, "batch_bytes_max": 1 << 20, "in_flight_max": 4}
    return WriteQueue(**{"bytes_max": 1 << 20, **defaults, **bounds})


def put(queue: WriteQueue, payload: bytes = b"x") -> PendingWrite:
    pending = PendingWrite(payload)
    queue.put([pending], 0)
    return pending


class SentBatches:
    """A connection that only notes what it is to send."""

    def __init__(self, queue: WriteQueue) -> None:
        self.batches: list[list[PendingWrite]] = []
        self.flushed = 0
        self.is_finished = False
        self._queue = queue
        self.in_flight = InFlight(self)

    def queue(self, batch: list[PendingWrite]) -> None:
        assert batch
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushed = len(self.batches)

    def finish(self) -> None:
        self.is_finished = True

    def ack(self) -> list[PendingWrite]:
        return self._queue.acked(self.in_flight)

    def end(self) -> list[PendingWrite]:
        return self._queue.end(self.in_flight)


def connected(queue: WriteQueue) -> SentBatches:
    sent = SentBatches(queue)
    queue.begin(sent.in_flight)
    return sent


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_a_connection_that_begins_gets_all_that_is_queued_in_order() -> None:
    queue = make_queue()
    writes = [put(queue) for _ in range(10)]
    sent = connected(queue)
    assert sent.batches == [writes]
    assert sent.flushed == 1


def test_a_batch_is_bounded_in_count_and_in_bytes() -> None:
    queue = make_queue(batch_count_max=3, batch_bytes_max=100, in_flight_max=1)
    sizes = [10, 10, 10, 60, 50, 500, 10]
    for size in sizes:
        put(queue, b"x" * size)
    sent = connected(queue)
    while sum(map(len, sent.batches)) < len(sizes):
        sent.ack()
    # A payload over the bound still travels, alone.
    taken = [[len(p.payload) for p in batch] for batch in sent.batches]
    assert taken == [[10, 10, 10], [60], [50], [500], [10]]


def test_no_more_batches_than_allowed_are_in_flight() -> None:
    queue = make_queue(in_flight_max=2, batch_count_max=1)
    writes = [put(queue) for _ in range(3)]
    sent = connected(queue)
    assert sent.batches == [[writes[0]], [writes[1]]]
    assert sent.ack() == [writes[0]]
    assert sent.batches[2:] == [[writes[2]]]
    assert sent.flushed == 3


def test_writes_gather_while_a_batch_is_in_flight_until_they_are_many() -> None:
    queue = make_queue()
    sent = connected(queue)
    put(queue)
    gathered = [put(queue) for _ in range(31)]
    assert len(sent.batches) == 1
    gathered.append(put(queue))
    assert sent.batches[1:] == [gathered]
    assert sent.flushed == 2


def test_a_write_that_finds_the_connection_idle_leaves_at_once_in_its_own_thread() -> None:
    queue = make_queue()
    sent = connected(queue)
    write = put(queue)
    assert sent.batches == [[write]]
    assert sent.flushed == 1


def test_what_has_gathered_leaves_with_the_acknowledgement() -> None:
    queue = make_queue()
    sent = connected(queue)
    first, second, third = put(queue), put(queue), put(queue)
    assert sent.ack() == [first]
    assert sent.batches[1:] == [[second, third]]
    assert sent.flushed == 2


def test_a_thread_waits_until_its_write_is_finished() -> None:
    queue = make_queue()
    connected(queue)
    write = put(queue)
    waiting = in_thread(lambda: write.settle(10))
    eventually(lambda: is_within(waiting, "settle"))
    write.finish(None)
    waiting.join(5)
    assert write.failure is None


def test_a_write_that_was_not_sent_in_time_never_is() -> None:
    queue = make_queue()
    late, next_one = put(queue), put(queue)
    failure = late.settle(0)
    assert failure is not None
    assert not failure.maybe_stored
    assert connected(queue).batches == [[next_one]]


def test_a_write_that_was_sent_may_be_stored_although_no_one_answered() -> None:
    queue = make_queue()
    connected(queue)
    failure = put(queue).settle(0)
    assert failure is not None
    assert failure.maybe_stored


def test_the_first_word_about_a_write_stands() -> None:
    write = put(make_queue())
    write.finish(None)
    write.finish(LOST)
    assert write.settle(0) is None


def test_a_full_queue_makes_writers_wait_for_room() -> None:
    queue = make_queue(bytes_max=100)
    put(queue, b"x" * 90)
    refused = put(queue, b"y" * 20)
    failure = refused.settle(0)
    assert failure is not None
    assert failure.reason is Reason.BUSY
    patient = PendingWrite(b"z" * 20)
    waiting = in_thread(lambda: queue.put([patient], 10))
    eventually(lambda: is_within(waiting, "_wait_for_room"))
    sent = connected(queue)
    waiting.join(5)
    sent.ack()
    assert sent.batches[1:] == [[patient]]


def test_one_write_larger_than_the_whole_bound_may_pass_alone() -> None:
    queue = make_queue(bytes_max=100)
    huge = put(queue, b"x" * 1000)
    assert connected(queue).batches == [[huge]]


def test_a_connection_that_ends_returns_what_it_had_in_flight_and_the_next_gets_the_rest() -> None:
    queue = make_queue(batch_count_max=1, in_flight_max=1)
    first, second = put(queue), put(queue)
    sent = connected(queue)
    assert sent.end() == [first]
    third = put(queue)
    assert sent.batches == [[first]]
    again = connected(queue)
    again.ack()
    assert again.batches == [[second], [third]]


def test_what_never_reached_the_pump_is_put_back_in_front() -> None:
    queue = make_queue(in_flight_max=1)
    writes = [put(queue), put(queue)]
    sent = connected(queue)
    later = put(queue)
    queue.put_back(sent.end())
    assert connected(queue).batches == [[*writes, later]]


def test_a_closed_queue_sends_what_it_has_and_refuses_more() -> None:
    queue = make_queue()
    write = put(queue)
    queue.close()
    refused = put(queue)
    assert refused.settle(0) is not None
    assert queue.wait_for_work()
    sent = connected(queue)
    assert sent.batches == [[write]]
    assert not sent.is_finished
    sent.ack()
    assert sent.is_finished
    assert not queue.wait_for_work()


def test_closing_finishes_a_connection_that_is_idle() -> None:
    queue = make_queue()
    sent = connected(queue)
    queue.close()
    assert sent.is_finished


def test_a_write_wakes_the_thread_that_connects() -> None:
    queue = make_queue()
    found: list[bool] = []
    waiting = in_thread(lambda: found.append(queue.wait_for_work()))
    eventually(lambda: is_within(waiting, "wait_for_work"))
    put(queue)
    waiting.join(5)
    assert found == [True]


def test_many_threads_lose_no_write_and_none_is_sent_twice() -> None:
    queue = make_queue(batch_count_max=7)
    sent = connected(queue)
    arrived = threading.Semaphore(0)
    sent.flush = arrived.release  # type: ignore[method-assign]

    def answer() -> None:
        while not sent.is_finished:
            arrived.acquire()
            while sent.in_flight.batches:
                for pending in sent.ack():
                    pending.finish(None)

    def write() -> None:
        for _ in range(200):
            pending = PendingWrite(b"x")
            queue.put([pending], 5)
            assert pending.settle(5) is None

    answering = in_thread(answer)
    writers = [in_thread(write) for _ in range(8)]
    for writer in writers:
        writer.join()
    queue.close()
    answering.join(5)
    assert not answering.is_alive()
    taken = [pending for batch in sent.batches for pending in batch]
    assert len(taken) == len(set(taken)) == 1600


def test_much_at_once_travels_in_two_halves_so_that_neither_side_waits() -> None:
    queue = make_queue()
    sent = connected(queue)
    queue.put([PendingWrite(b"x") for _ in range(200)], 0)
    assert list(map(len, sent.batches)) == [100, 100]
    for _ in range(3):
        again = [PendingWrite(b"x") for _ in sent.ack()]
        queue.put(again, 0)
        assert sent.batches[-1] == again


def test_many_writes_are_flushed_once() -> None:
    queue = make_queue()
    sent = connected(queue)
    flushes: list[int] = []
    sent.flush = lambda: flushes.append(1)  # type: ignore[method-assign]
    queue.put([PendingWrite(b"x") for _ in range(50)], 0)
    assert list(map(len, sent.batches)) == [50]
    assert flushes == [1]


def test_writes_without_room_fail_and_those_before_them_do_not() -> None:
    queue = make_queue(bytes_max=10)
    writes = [PendingWrite(bytes(4)) for _ in range(4)]
    queue.put(writes, 0.01)
    failures = [p.settle(0) for p in writes[2:]]
    assert [f and (f.reason, f.maybe_stored) for f in failures] == [(Reason.BUSY, False)] * 2
    assert connected(queue).batches == [writes[:2]]


def test_what_has_room_is_sent_before_the_rest_waits_for_some() -> None:
    queue = make_queue(bytes_max=10, in_flight_max=1)
    sent = connected(queue)
    writes = [PendingWrite(bytes(4)) for _ in range(5)]
    waiting = in_thread(lambda: queue.put(writes, 5))
    eventually(lambda: is_within(waiting, "_wait_for_room"))
    assert sent.batches == [writes[:2]]
    assert sent.flushed == 1
    sent.ack()
    waiting.join(5)
    assert sent.batches[1:] == [writes[2:4]]


def test_the_end_of_a_write_may_bring_the_next_one() -> None:
    queue = make_queue()
    ended: list[PendingWrite] = []

    def again(pending: PendingWrite) -> None:
        ended.append(pending)
        put(queue)

    write = PendingWrite(b"x", on_end=again)
    queue.put([write], 0)
    queue.fail_queued(Failure(Reason.BROKEN, "gone", maybe_stored=False))
    assert ended == [write]
    assert list(map(len, connected(queue).batches)) == [1]
