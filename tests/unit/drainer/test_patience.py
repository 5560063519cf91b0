"""Patience: what may pass is waited for, with a growing pause, and not for ever."""

import threading
import time

import pytest

from drainer.sinks.patience import Patience
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable


class _Clock(threading.Event):
    """A clock that only moves when it is told to, and while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        self.now_s += timeout
        return self.is_set()


class _Downstream:
    """Fails as it is told to, and notes when it is let go of."""

    def __init__(self, clock: _Clock, retry_s_max: float = 60) -> None:
        self.clock = clock
        self.let_go = 0
        self.seen: list[bool] = []
        self.patience = Patience(
            "the store",
            retry_s_max=retry_s_max,
            let_go=self._let_go,
            passing=self._passing,
            closing=clock,
        )

    def fails(self, *errors: Exception | None, each_s: float = 0.0) -> str:
        """Run a call that meets `errors`, one a try; None is a success."""
        left = iter(errors)

        def attempt(is_retried: bool) -> str:
            self.seen.append(is_retried)
            self.clock.now_s += each_s
            error = next(left)
            if error is not None:
                raise error
            return "done"

        return self.patience.retrying(attempt)

    def _let_go(self) -> None:
        self.let_go += 1

    def _passing(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return str(error)
        if isinstance(error, ValueError):
            raise NeedsOperator("bad value", hint="another value", code=Code.URL_INVALID) from error
        raise error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def test_what_may_pass_is_tried_again_and_the_call_knows(clock: _Clock) -> None:
    store = _Downstream(clock)
    assert store.fails(OSError("away"), OSError("away"), None) == "done"
    assert store.seen == [False, True, True]
    assert store.let_go == 2
    assert store.patience.problem == ""


def test_the_pause_grows_up_to_five_seconds(clock: _Clock) -> None:
    store = _Downstream(clock)
    store.fails(*[OSError("away")] * 10, None)
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] <= 0.1
    assert clock.pauses[-1] == 5.0


def test_an_outage_that_lasts_is_an_error_that_names_it(clock: _Clock) -> None:
    store = _Downstream(clock, retry_s_max=30)
    with pytest.raises(Retryable, match="the store: no route, for 30 s"):
        store.fails(*[OSError("no route")] * 100)
    assert 20 <= clock.now_s <= 30
    assert store.patience.problem == "no route"


def test_time_at_work_is_not_time_away(clock: _Clock) -> None:
    store = _Downstream(clock, retry_s_max=30)
    assert store.fails(OSError("lost the connection"), None, each_s=3600) == "done"


def test_what_will_not_pass_ends_the_call_at_once(clock: _Clock) -> None:
    store = _Downstream(clock)
    with pytest.raises(NeedsOperator, match="bad value"):
        store.fails(ValueError("0"))
    with pytest.raises(LookupError):
        store.fails(LookupError())
    assert store.let_go == 2
    assert clock.pauses == []


def test_closing_ends_the_waiting_and_all_later_calls(clock: _Clock) -> None:
    store = _Downstream(clock)
    store.patience.close()
    with pytest.raises(Retryable, match="closed"):
        store.fails(None)
    assert store.seen == []
