"""TiDB-Binlog's filter keys mean here what they meant there."""

from pathlib import Path

import pytest

from drainer.components import compiled
from drainer.settings.config import DrainerConfig
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.settings.load import read_settings

TIDB_BINLOG_RULES = """
sink = "mysql://root@127.0.0.1:3306/?checkpoint-schema=marks"
[syncer]
replicate-do-db = ["shop", "~^log_"]
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,test"
[[syncer.replicate-do-table]]
db-name = "other"
tbl-name = "~^keep"
[[syncer.ignore-table]]
db-name = "shop"
tbl-name = "draft"
[syncer.binlog-filter-rule.no-delete]
ignore-event = ["delete"]
[syncer.binlog-filter-rule.no-index]
ignore-sql = ["^create +index"]
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["no-delete", "no-index"]
source = { schema = "shop", table = "item*" }
target = { schema = "store", table = "goods" }
"""


def load(tmp_path: Path, text: str) -> Rules:
    path = tmp_path / "drainer.toml"
    path.write_text(text)
    argv = ["--config", str(path)]
    return compiled(read_settings(DrainerConfig, argv, prog="drainer", env_prefix="D", env={}))


def test_the_keys_of_tidb_binlog_filter_and_route(tmp_path: Path) -> None:
    rules = load(tmp_path, TIDB_BINLOG_RULES)
    passing = [("shop", "item"), ("LOG_1", "t"), ("other", "keeper"), ("shop", "")]
    assert all(rules.is_replicated(*place) for place in passing)
    hidden = [("shop", "draft"), ("other", "x"), ("test", "t"), ("mysql", "user"), ("marks", "t")]
    assert not any(rules.is_replicated(*place) for place in hidden)
    assert rules.target("shop", "item7") == ("store", "goods")
    assert rules.target("shop", "x") == ("shop", "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[syncer.table-migrate-rule]]\nbinlog-filter-rule = ["x"]\n', "binlog-filter-rule 'x'"),
        ("[syncer.binlog-filter-rule.x]\n", "no table-migrate-rule uses"),
        ('[syncer]\nreplicate-do-bd = ["a"]\n', "did you mean 'syncer.replicate-do-db'"),
        ('[[filter.routes]]\nschema-patern = "a"\n', "did you mean 'schema-pattern'"),
        (
            'sink = "mysql://h/?checkpoint-schema=marks"\n'
            '[[filter.routes]]\nschema-pattern = "a"\ntarget-schema = "Marks"\n',
            "leads into 'Marks'",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        load(tmp_path, text)
