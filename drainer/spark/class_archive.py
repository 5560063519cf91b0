"""Spark's classes as the JVM maps them ready-made: half of the seconds that a start takes it.

    <data-dir>/spark-classes-<digest>.jsa    about 70 MB, written once in the background

A JVM that starts Spark loads and checks some 6,000 classes from 280 jars. It can write what it made
of them to a file (class data sharing) and map that file at its next start. Writing takes a JVM of
its own some twenty seconds, so it is done when a Drainer has been up for a while, at the lowest
priority, and once: the digest is of the Java and the Spark that are there. A file that does not fit
is ignored by the JVM, so the worst that it can do is not to help.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

BEGINS_AFTER_S = 300.0
_WITHIN_S = 300.0
_NAME = "spark-classes-{}.jsa"
# The JVM's complaints about a file that does not fit are of no use to anyone.
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_in(folder: Path, java_home: str) -> Path:
    """Return where the archive for this Java and this Spark is, or is to be."""
    try:
        release = (Path(java_home) / "release").read_bytes()
    except OSError:
        release = b""
    spark = importlib.metadata.version("pyspark").encode()
    digest = hashlib.sha256(b"\n".join((java_home.encode(), release, sys.prefix.encode(), spark)))
    return folder / _NAME.format(digest.hexdigest()[:12])


def options_for(archive: Path) -> str:
    """Return what makes a JVM map the archive; empty while there is none."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def write_archive(archive: Path, java_options: str) -> subprocess.Popen[bytes]:
    """Begin to write the archive, in a process that may be killed at any time."""
    for old in archive.parent.glob(_NAME.format("*")):
        with contextlib.suppress(OSError):
            old.unlink()
    command = [sys.executable, "-m", "drainer.spark.class_archive", str(archive), java_options]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _nothing(numbers: object) -> None:
    """Be a task."""


def main(arguments: Sequence[str]) -> int:
    """Run a session that loads what a Drainer's does, and let its JVM write the archive."""
    archive, java_options = Path(arguments[0]), arguments[1]
    os.nice(19)
    from pyspark import SparkConf, SparkContext

    # Spark's folder is emptied at each start, and so of what a killed process leaves there.
    with tempfile.TemporaryDirectory(dir=archive.parent / "spark") as folder:
        written = Path(folder) / archive.name
        conf = SparkConf().setMaster("local[1,4]").setAppName("penstock-classes")
        conf.set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.local.dir", folder)
        options = f"{java_options} -XX:ArchiveClassesAtExit={written} {_QUIET}"
        conf.set("spark.driver.extraJavaOptions", options)
        session = SparkContext(conf=conf)
        session.parallelize(range(1), 1).foreachPartition(_nothing)
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=_WITHIN_S)
        written.replace(archive)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
