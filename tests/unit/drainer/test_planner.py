import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.differences import Counts, Skipped
from drainer.intake.merger import Merged
from drainer.planner import AheadStep, DdlStep, Planner, RowsStep, Step
from drainer.task.row_changes import Lookup, Loss, Screened, Target
from penstock.errors import Malformed
from penstock.pb import binlog_pb2
from penstock.schema.model import TableInfo
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    PrewriteValue,
    TableMutation,
    fake_binlog,
)
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.tidb.tidb_shop import committed

DROPPED = 99


def lookup(table_id: int, version: int) -> Target:
    if table_id == DROPPED:
        gone = "db", TableInfo(id=table_id, name="gone")
        return Screened(gone, Loss("db.gone", cause="dropped-table"))
    # Table 7 changes with version 10, other tables never do.
    name = f"t{table_id}" + ("_new" if table_id == 7 and version >= 10 else "")
    return "db", TableInfo(id=table_id, name=name)


def mutation(table_id: int, *changes: tuple[MutationType, bytes]) -> TableMutation:
    def rows(kind: MutationType) -> tuple[bytes, ...]:
        return tuple(row for k, row in changes if k is kind)

    return TableMutation(
        table_id=table_id,
        inserted_rows=rows(MutationType.INSERT),
        updated_rows=rows(MutationType.UPDATE),
        deleted_rows=rows(MutationType.DELETE),
        sequence=tuple(kind for kind, _ in changes),
    )


def transaction(ts: int, *mutations: TableMutation, version: int = 1) -> bytes:
    value = encode_prewrite_value(PrewriteValue(schema_version=version, mutations=mutations))
    return committed(ts, value)


def inserts(ts: int, rows: int, table_id: int = 1, version: int = 1, size: int = 10) -> bytes:
    changes = [(MutationType.INSERT, b"%d.%d" % (ts, i) + b"x" * size) for i in range(rows)]
    return transaction(ts, mutation(table_id, *changes), version=version)


def ddl(ts: int) -> bytes:
    return committed(ts, ddl_job_id=ts, ddl_query=b"CREATE")


def fake(ts: int) -> bytes:
    return encode_binlog(fake_binlog(ts))


def planner(rows_max: int = 1000, bytes_max: int = 1 << 20, lookup: Lookup = lookup) -> Planner:
    return Planner(lookup, rows_max=rows_max, bytes_max=bytes_max)


def offer(plan: Planner, **payloads: bytes) -> None:
    commit_ts = [int(name[1:]) for name in payloads]
    plan.offer(Merged(commit_ts, list(payloads.values()), 0))


def steps(plan: Planner) -> list[Step]:
    out: list[Step] = []
    while (step := plan.next_step()) is not None:
        assert not isinstance(step, AheadStep)
        out.append(step)
    last = plan.cut()
    return [*out, last] if last else out


def test_a_ddl_stands_alone_between_what_is_before_and_after_it() -> None:
    plan = planner()
    offer(plan, _10=inserts(10, 2), _20=fake(20), _30=ddl(30), _40=inserts(40, 3))
    first, second, third = steps(plan)
    assert isinstance(first, RowsStep)
    assert (first.commit_ts, first.rows, first.transactions) == (20, 2, 1)
    assert second == DdlStep(30, 30, "CREATE")
    assert isinstance(third, RowsStep)
    assert (third.commit_ts, third.rows) == (40, 3)


def test_two_ddls_in_a_row_have_no_empty_batch_between_them() -> None:
    plan = planner()
    offer(plan, _30=ddl(30), _31=ddl(31))
    assert [type(step) for step in steps(plan)] == [DdlStep, DdlStep]


def test_a_batch_ends_at_its_rows_and_never_within_a_transaction() -> None:
    plan = planner(rows_max=5)
    offer(plan, _10=inserts(10, 3), _20=inserts(20, 4), _30=inserts(30, 1))
    assert [(s.commit_ts, s.rows) for s in steps(plan) if isinstance(s, RowsStep)] == [
        (20, 7),
        (30, 1),
    ]


def test_a_transaction_above_the_byte_limit_is_a_batch_of_its_own() -> None:
    plan = planner(bytes_max=1000)
    offer(plan, _10=inserts(10, 1), _20=inserts(20, 1, size=5000), _30=inserts(30, 1))
    assert [s.commit_ts for s in steps(plan)] == [10, 20, 30]


def test_nothing_is_cut_while_nothing_came() -> None:
    plan = planner()
    assert plan.cut() is None
    offer(plan, _10=fake(10))
    assert plan.next_step() is None
    assert plan.cut() == RowsStep(10)
    assert plan.cut() is None


def test_rows_keep_the_order_of_their_sequence_whatever_their_kind() -> None:
    I, U, D = MutationType  # noqa: E741, N806
    changes = [(I, b"a"), (U, b"b"), (I, b"c"), (D, b"d"), (U, b"e")]
    plan = planner()
    offer(plan, _10=transaction(10, mutation(1, *changes), mutation(2, (D, b"z"))))
    (step,) = steps(plan)
    assert isinstance(step, RowsStep)
    one, two = step.tables
    assert (one.schema, one.table.name, bytes(one.kinds)) == ("db", "t1", bytes([0, 1, 0, 4, 1]))
    assert one.rows.to_pylist() == [b"a", b"b", b"c", b"d", b"e"]
    assert (two.table.name, bytes(two.kinds), two.rows.to_pylist()) == ("t2", b"\x04", [b"z"])


def test_rows_of_a_dropped_table_are_left_out_and_time_moves_on() -> None:
    plan = planner()
    offer(plan, _10=inserts(10, 2, table_id=DROPPED))
    assert plan.next_step() is None
    skipped = Counts({Skipped("rows", "dropped-table", "db.gone"): 2})
    size = len(inserts(10, 2, table_id=DROPPED))
    assert plan.rows == 0
    assert plan.cut() == RowsStep(10, transactions=1, bytes=size, skipped=skipped)


def test_a_new_version_of_a_table_starts_a_new_batch_and_other_tables_do_not() -> None:
    plan = planner()
    offer(
        plan,
        _10=inserts(10, 1, table_id=7, version=9),
        _11=inserts(11, 1, table_id=1, version=10),
        _12=inserts(12, 1, table_id=7, version=10),
        _13=inserts(13, 1, table_id=1, version=11),
    )
    assert [s.commit_ts for s in steps(plan)] == [11, 13]


def test_the_schema_is_looked_up_again_after_a_ddl() -> None:
    asked = []

    def remembering(table_id: int, version: int) -> tuple[str, TableInfo]:
        asked.append((table_id, version))
        return "db", TableInfo(id=table_id, name="t")

    plan = planner(lookup=remembering)
    offer(plan, _10=inserts(10, 1), _11=inserts(11, 1), _12=ddl(12), _13=inserts(13, 1))
    steps(plan)
    assert asked == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff",
        inserts(11, 1),  # Another commit_ts than the Pump says.
        encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=5, commit_ts=10)),
        encode_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=5, commit_ts=10)),
        committed(10, b"\xff"),
    ],
)
def test_what_no_pump_may_send_is_refused(payload: bytes) -> None:
    plan = planner()
    offer(plan, _10=payload)
    with pytest.raises(Malformed):
        plan.next_step()


@pytest.mark.parametrize(
    "broken",
    [
        {"inserted_rows": [b"a"], "sequence": [0, 0]},
        {"inserted_rows": [b"a"], "sequence": []},
        {"inserted_rows": [b"a"], "updated_rows": [b"b"], "sequence": [0]},
        {"inserted_rows": [b"a"], "sequence": [1]},
        {"deleted_ids": [1], "sequence": [2]},
        {"inserted_rows": [b"a"], "deleted_pks": [b"p"], "sequence": [0]},
    ],
)
def test_lists_and_sequence_that_disagree_are_refused(broken: dict[str, list[int]]) -> None:
    value = binlog_pb2.PrewriteValue(schema_version=1)
    value.mutations.add(table_id=1, **broken)
    payload = committed(10, value.SerializeToString())
    plan = planner()
    offer(plan, _10=payload)
    with pytest.raises(Malformed, match="sequence"):
        plan.next_step()


_events = st.lists(
    st.tuples(st.sampled_from(["rows", "rows", "fake", "ddl", "take"]), st.integers(1, 9)),
    max_size=60,
)


@given(_events, st.integers(1, 20))
def test_all_rows_come_out_once_in_order_and_ddls_are_barriers(
    events: list[tuple[str, int]], rows_max: int
) -> None:
    plan = planner(rows_max=rows_max)
    expected: list[bytes | int] = []
    got: list[bytes | int] = []
    last_ts = 0

    def collect(step: Step | None) -> None:
        nonlocal last_ts
        if step is None:
            return
        assert step.commit_ts > last_ts
        last_ts = step.commit_ts
        if isinstance(step, DdlStep):
            got.append(step.commit_ts)
        else:
            assert isinstance(step, RowsStep)
            assert step.rows < rows_max + 9
            for table in step.tables:
                got.extend(table.rows.to_pylist())

    for ts, (what, count) in enumerate(events, 1):
        if what == "rows":
            plan.offer(Merged([ts], [inserts(ts, count)], 0))
            expected += [b"%d.%d" % (ts, i) + b"x" * 10 for i in range(count)]
        elif what == "fake":
            plan.offer(Merged([ts], [fake(ts)], 0))
        elif what == "ddl":
            plan.offer(Merged([ts], [ddl(ts)], 0))
            expected.append(ts)
        else:
            while (step := plan.next_step()) is not None:
                assert not isinstance(step, AheadStep)
                collect(step)
            collect(plan.cut())
    for step in steps(plan):
        collect(step)
    assert got == expected


def test_an_ignored_transaction_is_left_out_and_time_still_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = Planner(lookup, rows_max=1000, bytes_max=1 << 20, ignored_ts={20, 40})
    offer(plan, c10=inserts(10, 2), c20=inserts(20, 3), c40=ddl(40))
    found = steps(plan)
    assert [(s.commit_ts, getattr(s, "rows", None)) for s in found] == [(20, 2), (40, None)]
    assert "transaction 20 is in ignore-txn-commit-ts" in caplog.text
    assert [getattr(s, "skipped", None) for s in found] == [
        {
            Skipped("transactions", "ignore-txn-commit-ts"): 1,
            Skipped("rows", "ignore-txn-commit-ts", "db.t1"): 3,
        },
        None,
    ]


def test_a_sequence_s_new_value_only_moves_the_time() -> None:
    plan = planner()
    setval = committed(30, ddl_job_id=9, ddl_query=b"SELECT setval(s, 5)")
    offer(plan, c10=inserts(10, 2), c30=setval)
    assert [(s.commit_ts, getattr(s, "rows", None)) for s in steps(plan)] == [(30, 2)]


@pytest.mark.parametrize("last", [4, 5], ids=["between two commits", "at a commit"])
def test_what_was_one_batch_is_one_again_whatever_the_limits_say(last: int) -> None:
    plan = Planner(lookup, rows_max=2, bytes_max=50, whole_ts=last)
    offer(plan, t1=inserts(1, 2), t2=inserts(2, 2), t3=fake(3))
    assert plan.next_step() is None
    assert plan.rows == 4
    assert plan.cut() is None
    offer(plan, t5=inserts(5, 1), t6=inserts(6, 2), t7=inserts(7, 2))
    cut = [(step.commit_ts, step.rows) for step in steps(plan) if isinstance(step, RowsStep)]
    assert cut == ([(4, 4), (5, 1)] if last == 4 else [(5, 5)]) + [(6, 2), (7, 2)]


def test_a_ddl_ends_even_what_was_one_batch() -> None:
    plan = Planner(lookup, rows_max=2, bytes_max=50, whole_ts=9)
    offer(plan, t1=inserts(1, 2), t2=ddl(2), t3=inserts(3, 2), t9=inserts(9, 2))
    assert [step.commit_ts for step in steps(plan)] == [1, 2, 9]
