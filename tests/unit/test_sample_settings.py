"""The sample settings load, name every key, and show the true defaults."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from drainer.settings.config import DrainerConfig
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


@pytest.mark.parametrize(("name", "kind"), SAMPLES)
def test_a_sample_names_every_key(name: str, kind: type[Any]) -> None:
    document = tomllib.loads((CONF / f"{name}.toml").read_text())
    assert keys(document) == expected(kind())
