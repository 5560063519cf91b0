import asyncio
from itertools import islice

from penstock.waiting import doubling, set_within, spread_s


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(doubling(1.0, 5.0), 5)) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_spread_pause_lies_in_the_upper_half_of_its_bound() -> None:
    for failures, bound_s in ((0, 1.0), (2, 4.0), (3, 5.0), (10_000, 5.0)):
        assert bound_s / 2 <= spread_s(failures, 1.0, 5.0) <= bound_s


def test_an_event_ends_a_wait_and_a_wait_ends_without_it() -> None:
    async def body() -> tuple[bool, bool]:
        event = asyncio.Event()
        before = await set_within(event, 0)
        event.set()
        return before, await set_within(event, 60)

    assert asyncio.run(body()) == (False, True)
