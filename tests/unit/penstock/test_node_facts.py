"""What nodes say of themselves, as JSON: numbers are numbers, and no name is a key."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.node.output import facts_of, key_of, typed, value_of
from penstock.pb import penstock_pb2


def test_details_become_numbers_truths_and_a_list_of_nodes() -> None:
    reply = penstock_pb2.StatusReply(
        node_id="drainer-1",
        state="online",
        max_commit_ts=463_000_000_000_000_001,
        details={
            "uptime_s": "12",
            "lag_s": "0.250",
            "leads_oracle": "True",
            "labels": "7",
            "status_pages": "none",
            "pump 10.0.0.1:8250": "online, ok",
            "pump 10.0.0.1:8250 received_ts": "463000000000000000",
            "pump pump-2": "paused",
            "transaction 463000000000000002 key": "123456",
            "transaction 463000000000000002 waits": "its lock holds",
        },
    )
    assert json.loads(json.dumps(facts_of(reply))) == {
        "node_id": "drainer-1",
        "state": "online",
        "max_commit_ts": 463_000_000_000_000_001,
        "uptime_s": 12,
        "lag_s": 0.25,
        "leads_oracle": True,
        "labels": "7",
        "status_pages": "none",
        "pumps": [
            {
                "node_id": "10.0.0.1:8250",
                "summary": "online, ok",
                "received_ts": 463_000_000_000_000_000,
            },
            {"node_id": "pump-2", "summary": "paused"},
        ],
        "transactions": [
            {"start_ts": 463_000_000_000_000_002, "key": "123456", "waits": "its lock holds"}
        ],
    }


@given(st.integers(min_value=-(10**19) + 1, max_value=10**19 - 1))
def test_every_whole_number_keeps_all_its_digits(number: int) -> None:
    assert value_of(str(number)) == number


def test_what_only_resembles_a_number_stays_text() -> None:
    for text in ("007", "1e5", "12 rows", "+1", "1.", ".5", "", "nan", "0x1", "-", "1_000", "٣"):
        assert value_of(text) == text


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_keys_are_words_whatever_a_detail_is_called(details: dict[str, str]) -> None:
    for key in typed(details):
        assert re.fullmatch("[a-z0-9_]*", key)
    assert key_of("Last batch (rows)") == "last_batch_rows"
