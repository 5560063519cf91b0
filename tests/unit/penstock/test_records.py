import pytest

from penstock.cluster.records import DrainerStop, LastWord, record_of, record_text
from penstock.errors import Malformed

WORD = LastWord(pump="pump-1", up_to_ts=7, open_count=0, made="2026-11-26T14:00:00Z")
TEXT = '{"pump": "pump-1", "up_to_ts": 7, "open_count": 0, "made": "2026-11-26T14:00:00Z"}'


def test_a_record_is_an_object_with_its_fields_in_their_order() -> None:
    assert record_text(WORD) == TEXT
    assert record_of(LastWord, "k", TEXT.encode()) == WORD
    stop = '{"node_id": "d", "made": "", "problem": "p", "hint": "h"}'
    assert record_of(DrainerStop, "k", stop.encode()).choices == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        TEXT.replace("7", '"7"'),
        TEXT.replace("7", "true"),
        TEXT.replace('"pump-1"', "1"),
        TEXT.replace("made", "when"),
        "{}",
    ],
)
def test_a_record_that_cannot_be_read_names_its_key_and_the_remedy(text: str) -> None:
    with pytest.raises(Malformed, match=r"^/k is b.* \(correct it in etcd\)"):
        record_of(LastWord, "/k", text.encode())
