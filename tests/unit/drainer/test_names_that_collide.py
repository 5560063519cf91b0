"""Names that become one another in a topic, a folder or a file: told apart, or refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.settings.targets import KafkaTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta.lake import folder_name
from drainer.sinks.kafka.topics import TopicOwners, encoding_of
from drainer.sinks.opening import open_table_sink
from penstock.codes import Code
from penstock.errors import NeedsOperator
from tests.kit.sink_target import sink_target
from tests.unit.penstock.ddl_session import DdlSession

NAMES = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), min_size=1)


def owners(query: str = "prefix=p") -> TopicOwners:
    target = sink_target(KafkaTarget, f"kafka://h/?{query}")
    return TopicOwners(target, encoding_of(target, 7))


def made(*names: tuple[str, str]) -> DdlSession:
    session = DdlSession()
    for schema, table in names:
        session.run(f"CREATE DATABASE IF NOT EXISTS `{schema}`")
        session.run(f"CREATE TABLE `{schema}`.`{table}` (id INT PRIMARY KEY)")
    return session


COLLIDING = [
    (("shop", "商品"), ("shop", "订单")),
    (("a.b", "c"), ("a", "b.c")),
    (("shop", "a b"), ("shop", "a_b")),
    (("ä", "t"), ("ö", "t")),
]


@pytest.mark.fault(
    "names of tables become one topic, one folder of a lake, or one table of SQLite; are"
    " longer than a folder's name may be",
    "the second table is refused where names cannot be kept apart",
    cases="11",
)
@pytest.mark.parametrize("names", COLLIDING)
def test_the_second_table_of_a_topic_is_refused_at_the_start_and_when_it_is_made(
    names: tuple[tuple[str, str], ...],
) -> None:
    session = made(*names)
    with pytest.raises(NeedsOperator, match="would have the topic") as refused:
        owners().look_at(session.catalog)
    assert refused.value.code is Code.KAFKA_TOPIC
    known = owners()
    *before, last = session.changes
    for change in before:
        known.change(change)
    with pytest.raises(NeedsOperator, match="would have the topic"):
        known.change(last)
    other = owners("prefix=p&format=tidb-binlog")
    other.look_at(session.catalog)  # All tables are in one topic there.


def test_a_table_that_is_renamed_to_another_ones_topic_is_refused() -> None:
    session, known = made(("a", "b_c"), ("a", "t")), owners()
    known.look_at(session.catalog)
    session.run("RENAME TABLE a.t TO a.`b c`")
    with pytest.raises(NeedsOperator, match=r"is that of table a\.b_c"):
        known.change(session.changes[-1])


def test_a_table_that_is_made_again_keeps_its_topic_and_a_template_may_share_one() -> None:
    session, known = made(("a", "商"), ("b", "商"), ("b", "x")), owners()
    session.run("TRUNCATE TABLE a.`商`", "DROP TABLE a.`商`", "CREATE TABLE a.`商` (id INT)")
    for change in session.changes:
        known.change(change)
    owners("prefix=p&topic={prefix}.{table}").look_at(session.catalog)
    owners("prefix=p&topic={prefix}.all").look_at(session.catalog)
    with pytest.raises(NeedsOperator, match="the Drainer itself"):
        owners("prefix=p&topic={prefix}.{table}").look_at(made(("a", "ddl")).catalog)


def test_a_topic_is_in_use_while_one_of_its_tables_exists() -> None:
    session, known = (
        made(("a", "t"), ("b", "t"), ("b", "x")),
        owners("prefix=p&topic={prefix}.{table}"),
    )
    asked = ["p.t", "p.x", "p.ddl", "_penstock_checkpoint", "p.other"]
    assert known.unused(asked) == {"p.t", "p.x", "p.other"}
    known.look_at(session.catalog)
    assert known.unused(asked) == {"p.other"}
    seen = len(session.changes)
    session.run("DROP TABLE a.t", "TRUNCATE TABLE b.x", "RENAME TABLE b.x TO b.other")
    for change in session.changes[seen:]:
        known.change(change)
    assert known.unused(asked) == {"p.x"}
    session.run("DROP DATABASE b")
    known.change(session.changes[-1])
    assert known.unused(asked) == {"p.t", "p.x", "p.other"}
    assert owners("prefix=p&format=tidb-binlog").unused(asked) == set()


@given(NAMES, NAMES)
def test_folders_of_a_lake_differ_where_names_do_and_fit_a_file_system(a: str, b: str) -> None:
    for name in (a[:64], (a * 64)[:64], b[:64]):
        assert len(folder_name(name).encode()) <= 255
    if a[:64] != b[:64]:
        assert folder_name(a[:64]) != folder_name(b[:64])


def test_long_names_of_a_lake_that_begin_alike_have_two_folders() -> None:
    one, other = "商" * 40 + "a", "商" * 40 + "b"
    assert folder_name(one) != folder_name(other)
    assert folder_name("商" * 28) == "~E5~95~86" * 28
    assert "~~" in folder_name("商" * 29)


def test_two_tables_that_sqlite_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    for number, names in enumerate(
        [(("a.b", "c"), ("a", "b.c")), (("s", "T.t"), ("S.t", "t")), (("x", "y.z"), ("X.y", "z"))]
    ):
        sink = open_table_sink(f"sqlite:///{tmp_path}/{number}.db", cluster_id=1, retry_s_max=0)
        sink.load_checkpoint()
        stopped = 0
        for change in made(*names).changes:
            try:
                sink.run_ddl(change, Checkpoint(change.job.schema_version, 1), maybe_done=False)
            except NeedsOperator:
                stopped += 1
        sink.close()
        collide = f"{'.'.join(names[0])}".lower() == f"{'.'.join(names[1])}".lower()
        assert stopped == (1 if collide else 0), names
