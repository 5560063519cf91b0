"""Keys as PD and TiKV order them, and which of them are TiDB's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import outbox
from pump.tikv import is_of_tidb, memcomparable
from tests.kit.fakes.scripted_tidb import meta_key, row_key

KEYS = st.binary(max_size=40)


def decoded(encoded: bytes) -> tuple[bytes, bytes]:
    key = b""
    while True:
        group, mark, encoded = encoded[:8], encoded[8], encoded[9:]
        padding = 255 - mark
        assert group[8 - padding :] == bytes(padding)
        key += group[: 8 - padding]
        if padding:
            return key, encoded


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", "0000000000000000f7"),
        (b"\x01\x02\x03", "0102030000000000fa"),
        (b"\x01\x02\x03\x00", "0102030000000000fb"),
        (b"abcdefgh", "6162636465666768ff0000000000000000f7"),
        (b"abcdefghi", "6162636465666768ff6900000000000000f8"),
    ],
)
def test_groups_of_eight_bytes_each_say_how_much_of_them_is_padding(
    key: bytes, expected: str
) -> None:
    assert memcomparable(key).hex() == expected


@given(KEYS, KEYS)
def test_memcomparable_keys_sort_as_the_keys_do(left: bytes, right: bytes) -> None:
    assert (memcomparable(left) < memcomparable(right)) == (left < right)


@given(KEYS, KEYS)
def test_a_memcomparable_key_ends_by_itself_whatever_follows(key: bytes, more: bytes) -> None:
    assert decoded(memcomparable(key) + more) == (key, more)


@given(st.integers(1, 2**62), st.integers(-(2**63), 2**63 - 1))
def test_keys_of_rows_and_of_ddl_jobs_are_tidb_s(table_id: int, handle: int) -> None:
    assert is_of_tidb(row_key(table_id, handle))
    assert is_of_tidb(row_key(table_id, handle).replace(b"_r", b"_i"))
    assert is_of_tidb(meta_key())


@pytest.mark.parametrize("name", [b"DDLJobList", b"DDLJobHistory", b"DB:1", b"", b"NextGlobalID"])
def test_every_meta_key_is_tidb_s(name: bytes) -> None:
    assert is_of_tidb(meta_key(name))


@given(st.text(max_size=60))
def test_no_text_is_taken_for_a_key_of_tidb(text: str) -> None:
    table = text.encode()
    if table[:1] == b"t" and table[9:11] in (b"_r", b"_i"):
        return  # Eight characters later it would have to look exactly so.
    assert not is_of_tidb(table)
    assert not is_of_tidb(b"m" + table)


def test_no_key_of_an_outbox_is_taken_for_one_of_tidb() -> None:
    assert not any(is_of_tidb(outbox.new_key(name)) for name in ("t", "m", "shop", "t_r"))
    assert not is_of_tidb(b"")
    assert not is_of_tidb(b"t" + bytes(8))
