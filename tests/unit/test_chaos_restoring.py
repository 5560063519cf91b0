"""What an operator decides after a restore of etcd, as far as a chaos plays one."""

import json
from typing import Any

import pytest

from penstock.cluster.log_entry import LOGS, Copy, LogEntry
from penstock.errors import Retryable
from pump.replication.claiming import Unseen, refuse_other_history
from pump.replication.protocol.chain import Chain, Link, Seen
from tests.chaos.faults import JUMPS_S, PATIENCE_MAX, jump_s, patience_of
from tests.chaos.restoring import decision, decisions, unserved

ONE, TWO = Copy("pump-1", "a1"), Copy("pump-2", "b2")


class Entries:
    """A list in etcd that was put back to epoch 3."""

    def read(self, _name: str) -> Any:
        return LogEntry(epoch=3, primary=ONE, ids=(0x33,)), 7


def test_of_histories_that_have_parted_the_one_with_the_higher_epoch_continues() -> None:
    shared = Link(1, 3, 50, 0x33)
    own, other = [shared, Link(2, 4, 90, 0x4A)], (shared, Link(2, 5, 90, 0x5B))
    entries: Any = Entries()
    with pytest.raises(Retryable) as parted:
        refuse_other_history(
            *(entries, "pump-1", ONE, Chain(own), [Seen(TWO, other)], Unseen([], [])),
            withdraw_offline=lambda: None,
        )
    assert decision(str(parted.value)) == [
        *("adopt-log", "pump-1", "--pump", "pump-2", "--disk", "b2"),
        *("--epoch", "5", "--from", "1", "--confirm", "pump-1"),
    ]


def refused(log: str, disk: str, epoch: int, why: str = "choose") -> str:
    text = f"{LOGS}{log}: pump-1, disk {disk}: {epoch} (id 00000a)"
    command = f"penstock ctl adopt-log {log} --pump pump-1 --disk {disk} --epoch 9 --from 0"
    return json.dumps({"message": f"{text}. {why}: {command}", "code": "PS-3312"})


def test_the_last_refusal_of_each_log_that_nobody_serves_is_decided() -> None:
    lines = [
        refused("pump-1", "a1", 3),
        refused("pump-2", "b2", 4),
        refused("pump-1", "a2", 5),
        refused("pump-3", "c3", 6),
        refused("pump-2", "b3", 7, "Start the Pumps that are down. To decide without them"),
    ]
    decided = decisions(lines, ["pump-1", "pump-2"])
    assert [(command[1], command[5]) for command in decided] == [("pump-1", "a2"), ("pump-2", "b2")]


def test_a_log_is_served_once_any_pump_has_said_so_since_the_restore() -> None:
    said = b'{"message": "pump pump-1 is online at h:1"}\n{"message": "pump pump-3 is online at '
    assert unserved(said + b'h:2"}\n') == ["pump-2"]
    assert unserved(b"") == ["pump-1", "pump-2", "pump-3"]


def test_clocks_jump_ahead_and_back_by_seconds_to_an_hour() -> None:
    jumps = {jump_s(number) for number in range(100)}
    assert jumps == {sign * size_s for size_s in JUMPS_S for sign in (1, -1)}
    assert max(jumps) == 3600


def test_a_busy_machine_is_given_more_time_and_an_idle_one_no_less() -> None:
    assert patience_of(0.0, 2) == patience_of(2.0, 2) == 1.0
    assert patience_of(5.0, 2) == 2.5
    assert patience_of(25.0, 2) == PATIENCE_MAX  # What still stands then is stuck.
