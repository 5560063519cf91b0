"""Spark runs on the first Java that is new enough; without one a human learns what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drainer.spark.jvm import use_java
from penstock.errors import NeedsOperator


@pytest.fixture(autouse=True)
def _nothing_beside_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))


def java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_is_asked_first(tmp_path: Path) -> None:
    named, other = java(tmp_path / "a", "17.0.15"), java(tmp_path / "b", "21.0.8")
    assert use_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")}) == named


def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path: Path) -> None:
    old, new = java(tmp_path / "a", "11.0.2"), java(tmp_path / "b", "25")
    assert use_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_the_java_that_set_up_brought_is_the_last_resort(tmp_path: Path) -> None:
    beside_us = java(tmp_path / "prefix" / "java", "21.0.8")
    assert use_java({"PATH": ""}) == beside_us


def test_without_java_the_error_names_what_was_found_and_a_remedy(tmp_path: Path) -> None:
    old = java(tmp_path / "a", "1.8.0_392")
    with pytest.raises(NeedsOperator, match=r"Java 1\).*default-jre-headless"):
        use_java({"JAVA_HOME": str(old), "PATH": ""})
