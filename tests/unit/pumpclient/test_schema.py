import pytest

from penstock.cluster.history import History
from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.schema import Schemas, split_name
from tests.kit.fakes.etcd import MemoryEtcd
from tests.unit.penstock.ddl_session import DdlSession


@pytest.mark.parametrize(
    ("name", "schema", "parts"),
    [
        ("t", "db", ("db", "t")),
        ("db.t", None, ("db", "t")),
        ("db.t", "other", ("db", "t")),
        ("`db`.`t.x`", None, ("db", "t.x")),
        ("`a``b`", "db", ("db", "a`b")),
        ("db.`t`", None, ("db", "t")),
    ],
)
def test_a_table_is_named_with_or_without_its_schema(
    name: str, schema: str | None, parts: tuple[str, str]
) -> None:
    assert split_name(name, schema) == parts


@pytest.mark.parametrize("name", ["t", "", "a.b.c", ".t", "db."])
def test_what_names_no_table_is_refused(name: str) -> None:
    with pytest.raises(NeedsOperator, match="names no table"):
        split_name(name, None)


def recorded(*statements: str) -> History:
    history = History(MemoryEtcd())
    for job in DdlSession(*statements).history:
        history.append(job)
    return history


def test_a_writer_that_knows_a_ddl_which_etcd_has_lost_writes_nothing() -> None:
    full = recorded("CREATE TABLE t (a INT)", "ALTER TABLE t ADD b INT")
    schemas = Schemas(full)
    schemas.confirm(3)
    schemas.confirm(3)
    for restored in (
        recorded("CREATE TABLE t (a INT)"),
        recorded("CREATE TABLE t (a INT)", "ALTER TABLE t ADD price INT"),
    ):
        schemas._history = restored
        with pytest.raises(NeedsOperator, match="ADD b INT") as caught:
            schemas.confirm(restored.schema_version())
        assert caught.value.code is Code.DDL_HISTORY
        with pytest.raises(NeedsOperator, match="ADD b INT"):
            schemas.catalog()
