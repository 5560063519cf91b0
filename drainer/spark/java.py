"""Finds the Java that Spark is to run on, and says what to do when there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.errors import NeedsOperator

VERSION_MIN = 17
"""Spark 4 runs on nothing older."""


def use_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the JAVA_HOME of the first Java that is new enough; raise `NeedsOperator`.

    Asked in turn: JAVA_HOME, the PATH, and the one that `make setup` puts beside our packages.
    """
    seen = []
    for home in _homes(environment):
        version = version_of(home / "bin" / "java")
        if version >= VERSION_MIN:
            return home
        seen.append(f"{home} ({f'Java {version}' if version else 'no Java'})")
    raise NeedsOperator(
        f"Spark needs Java {VERSION_MIN} or later; found {', '.join(seen) or 'none'}",
        hint="apt-get install default-jre-headless, or set JAVA_HOME",
    )


def version_of(java: Path) -> int:
    """Return the major version of a Java program; 0 when it is none.

    Every JDK and JRE says it in a file, which is read in no time; a program that has none is run.
    """
    if (released := _release_of(java)) and os.access(java, os.X_OK):
        return released
    try:
        told = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def _release_of(java: Path) -> int:
    try:
        text = (java.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    beside_us = Path(sys.prefix) / "java"
    if beside_us.exists():
        yield beside_us
