"""The sample settings load, name every key, and show the true defaults."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from drainer.settings.config import DrainerConfig
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.settings.load import read_settings
from pump.config import PumpConfig
from pumpclient.mysql.source.config import SourceConfig

CONF = Path(__file__).resolve().parents[2] / "deploy" / "conf"
SAMPLES: list[tuple[str, type[Any]]] = [
    ("pump", PumpConfig),
    ("drainer", DrainerConfig),
    ("mysql_source", SourceConfig),
]


def keys(document: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in document.items():
        found |= (
            keys(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key}
        )
    return found


def expected(settings: Any, prefix: str = "") -> set[str]:
    found = set()
    for field in (each for each in dataclasses.fields(settings) if each.compare):
        key, value = prefix + field.name.replace("_", "-"), getattr(settings, field.name)
        found |= expected(value, key + ".") if dataclasses.is_dataclass(value) else {key}
    return found


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_a_sample_loads_and_shows_the_defaults(name: str, kind: type[Any]) -> None:
    path = CONF / f"{name}.toml"
    loaded = read_settings(kind, ["--config", str(path)], prog=name, env_prefix="X", env={})
    assert loaded == kind()


EXAMPLE = re.compile(r"(?:^# (?:\[|  ).*\n)+", re.MULTILINE)


def examples(name: str) -> list[str]:
    """Return the examples in a sample's comments: heads in brackets with their indented keys."""
    return EXAMPLE.findall((CONF / f"{name}.toml").read_text())


def without_marks(text: str) -> str:
    return re.sub(r"^# ", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_a_sample_names_every_key(name: str, kind: type[Any]) -> None:
    text = (CONF / f"{name}.toml").read_text()
    shown = keys(tomllib.loads(text))
    for example in examples(name):
        heads = re.findall(r"^# \[+([\w.-]+)\]", example, re.MULTILINE)
        shown |= {".".join(head.split(".")[:2]) for head in heads}
    assert shown == expected(kind())


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, _ in SAMPLES for i in range(-1, len(examples(name)))]
)
def test_an_example_in_a_sample_works_where_it_is_if_its_comment_marks_are_removed(
    name: str, number: int, tmp_path: Path
) -> None:
    """Number -1 is all of them at once."""
    text = (CONF / f"{name}.toml").read_text()
    for example in examples(name) if number == -1 else [examples(name)[number]]:
        text = text.replace(example, without_marks(example), 1)
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    kind = dict(SAMPLES)[name]
    loaded = read_settings(kind, ["--config", str(path)], prog=name, env_prefix="X", env={})
    if examples(name):
        assert loaded != kind()
        Rules(loaded.syncer.added_to(loaded.filter) if name == "drainer" else loaded.filter)


@pytest.mark.parametrize("names", [["shop.log"], ["shop.log", "shop.tmp*"]])
def test_names_instead_of_tables_are_answered_with_the_line_to_write(
    names: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "drainer.toml"
    arguments = ["--config", str(path)]
    path.write_text(f"[filter]\nignore-tables = {names}\n")
    with pytest.raises(NeedsOperator) as refused:
        read_settings(DrainerConfig, arguments, prog="drainer", env_prefix="X", env={})
    section, line = re.findall(r"in (\[.*?\]), write (.*)", refused.value.hint)[0]
    path.write_text(f"{section}\n{line}\n")
    loaded = read_settings(DrainerConfig, arguments, prog="drainer", env_prefix="X", env={})
    assert [f"{t.db_name}.{t.tbl_name}" for t in loaded.filter.ignore_tables] == names
