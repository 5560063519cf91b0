from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from pumpclient.mysql.gtid import (
    Flavor,
    MariadbGtid,
    MariadbGtidSet,
    MysqlGtid,
    MysqlGtidSet,
    decode_sids,
    encode_sids,
    parse_gtid_set,
)

A = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
B = UUID("4e11fa47-71ca-11e1-9e33-c80aa9429562")

mysql_gtids = st.builds(
    MysqlGtid, st.sampled_from([A, B]), st.integers(1, 30), st.sampled_from(["", "", "x", "day_1"])
)
mysql_histories = st.lists(mysql_gtids, max_size=40)
mariadb_gtids = st.builds(MariadbGtid, st.integers(0, 2), st.integers(1, 3), st.integers(0, 9))
mariadb_histories = st.lists(mariadb_gtids, max_size=12)


def mysql_set(gtids: list[MysqlGtid]) -> MysqlGtidSet:
    made = MysqlGtidSet()
    for gtid in gtids:
        made.add(gtid)
    return made


@given(mysql_histories)
def test_a_mysql_set_holds_what_was_added_and_nothing_else(gtids: list[MysqlGtid]) -> None:
    held = mysql_set(gtids)
    everything = {
        MysqlGtid(s, n, t) for s in (A, B) for n in range(1, 32) for t in ("", "x", "day_1")
    }
    assert {gtid for gtid in everything if gtid in held} == set(gtids)


@given(mysql_histories, mysql_histories)
def test_mysql_sets_join_and_part_like_sets(one: list[MysqlGtid], other: list[MysqlGtid]) -> None:
    a, b = mysql_set(one), mysql_set(other)
    assert a.union(b) == mysql_set([*one, *other])
    assert a.subtract(b) == mysql_set([gtid for gtid in one if gtid not in other])
    assert bool(a) == bool(one)


@given(mysql_histories)
def test_a_mysql_set_survives_its_text_and_its_bytes(gtids: list[MysqlGtid]) -> None:
    held = mysql_set(gtids)
    assert MysqlGtidSet.parse(str(held)) == held
    assert decode_sids(encode_sids(held)) == held


@given(mysql_histories, mysql_gtids)
def test_a_copy_does_not_follow_its_original(gtids: list[MysqlGtid], more: MysqlGtid) -> None:
    held = mysql_set(gtids)
    copy = held.copy()
    held.add(more)
    assert copy == mysql_set(gtids)


def test_mysql_texts_are_merged_sorted_and_written_as_the_server_does() -> None:
    text = f" {str(A).upper()}:7:1-3:3-5 ,\n{B}:Day:2, {A}:6"
    assert str(MysqlGtidSet.parse(text)) == f"{A}:1-7,{B}:day:2"
    assert str(MysqlGtidSet.parse("")) == ""
    assert str(MysqlGtidSet.parse(f"{A}:1:x:1-3:5")) == f"{A}:1:x:1-3:5"


def test_the_classic_bytes_are_those_of_the_published_layout() -> None:
    data = encode_sids(MysqlGtidSet.parse(f"{A}:1-5:7"))
    assert data == (
        (1).to_bytes(8, "little")
        + A.bytes
        + (2).to_bytes(8, "little")
        + b"".join(n.to_bytes(8, "little") for n in (1, 6, 7, 8))
    )


def test_the_tagged_bytes_are_those_of_the_published_layout() -> None:
    data = encode_sids(MysqlGtidSet.parse(f"{A}:1,{A}:x:2"))
    one = (1).to_bytes(8, "little")
    assert data == (
        b"\x01" + (2).to_bytes(6, "little") + b"\x01"
        + A.bytes + b"\x00" + one + (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
        + A.bytes + b"\x02x" + one + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "x", f"{A}", f"{A}:", f"{A}:0", f"{A}:5-3", f"{A}:1-", f"{A}:x", f"{A}:1:x", "0-1-2",
        f"{A}:1,,{B}:1", f"{{{str(A)[:34]}}}:1", f"{A}:9223372036854775807", f"{A}:-1",
    ],
)  # fmt: skip
def test_what_is_no_mysql_set_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_gtid_set(text, Flavor.MYSQL)


@given(mysql_histories, st.data())
def test_cut_or_wrong_bytes_are_refused_or_another_set(
    gtids: list[MysqlGtid], data: st.DataObject
) -> None:
    encoded = encode_sids(mysql_set(gtids))
    with pytest.raises(Malformed):
        decode_sids(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(Malformed):
        decode_sids(encoded + b"\0")


@given(mariadb_histories)
def test_a_mariadb_set_survives_its_text(gtids: list[MariadbGtid]) -> None:
    held = MariadbGtidSet(gtids)
    assert MariadbGtidSet.parse(str(held)) == held
    assert not held.subtract(MariadbGtidSet(held.position()))
    assert held.copy() == held


@given(mariadb_histories, mariadb_gtids)
def test_a_mariadb_set_has_everything_behind_its_position(
    gtids: list[MariadbGtid], asked: MariadbGtid
) -> None:
    behind = any(g.domain == asked.domain and asked.sequence <= g.sequence for g in gtids)
    assert (asked in MariadbGtidSet(gtids)) == behind


@given(mariadb_histories, mariadb_histories)
def test_mariadb_sets_join_and_part(one: list[MariadbGtid], other: list[MariadbGtid]) -> None:
    a, b = MariadbGtidSet(one), MariadbGtidSet(other)
    assert not a.subtract(a.union(b))
    assert not b.subtract(a.union(b))
    assert not any(gtid in b for gtid in a.subtract(b))
    before = str(a)
    a.copy().add(MariadbGtid(7, 7, 7))
    assert str(a) == before


def test_the_position_names_one_id_for_each_domain() -> None:
    state = MariadbGtidSet.parse("1-5-9, 0-1-100,0-2-120")
    assert str(state) == "0-1-100,0-2-120,1-5-9"
    assert list(map(str, state.position())) == ["0-2-120", "1-5-9"]
    state.add(MariadbGtid.parse("0-1-121"))
    assert list(map(str, state.position())) == ["0-1-121", "1-5-9"]


@pytest.mark.parametrize("text", ["0-1", "0-1-2-3", "a-1-2", "0-1-2,,", "4294967296-1-1", f"{A}:1"])
def test_what_is_no_mariadb_set_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_gtid_set(text, Flavor.MARIADB)


def test_the_flavour_is_read_off_the_version() -> None:
    assert Flavor.of_version("10.11.14-MariaDB-0+deb12u2") is Flavor.MARIADB
    assert Flavor.of_version("8.4.2") is Flavor.MYSQL
