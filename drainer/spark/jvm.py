"""Spark's JVM: started with a pipe that ends it with us, its output kept out of our log.

    our standard input pipe ──> JVM ──> standard output and error ──> spark.log (4 MiB, kept twice)

What Spark, the JVM, py4j and the tasks of a local master write are hundreds of lines for one
problem, and none is for an operator: they go to a file, and the Drainer's log has one line of its
own that names the file. `reason` picks from them what that line should say.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

from penstock.errors import Retryable

log = logging.getLogger(__name__)

_OUTPUT_BYTES_MAX = 4 << 20
_LINES_KEPT = 60
_END_S = 5.0
_POLL_S = 0.02
_NOISY_LOGGERS = ("py4j", "pyspark")
_TELLING = re.compile(r"error|exception|invalid|cannot|unable|refused|killed", re.IGNORECASE)
_TRACE = ("at ", "File ", "...", "Traceback", "WARNING: Using incubator")

Gateway = Any
"""py4j's end of the connection to a JVM; the package has no types."""


class Output:
    """The file that takes what Spark writes, and the last lines of it."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet; loggers of py4j and pyspark write here from now on."""
        self.path = path
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._file = RotatingFileHandler(
            path, maxBytes=_OUTPUT_BYTES_MAX, backupCount=1, encoding="utf-8", delay=True
        )
        for name in _NOISY_LOGGERS:
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.setLevel(logging.WARNING)
            logger.handlers = [self._file]
        # py4j reports a JVM that has gone to nobody's logger, with a trace.
        logging.getLogger().addFilter(self._is_not_of_py4j)

    def _is_not_of_py4j(self, record: logging.LogRecord) -> bool:
        if f"{os.sep}py4j{os.sep}" not in record.pathname:
            return True
        self._file.handle(record)
        return False

    def follow(self, stream: IO[bytes]) -> threading.Thread:
        """Copy a stream to the file, from a thread that ends with the stream."""
        self._lines.clear()
        thread = threading.Thread(target=self._copy, args=(stream,), name="spark out", daemon=True)
        thread.start()
        return thread

    def reason(self) -> str:
        """Return the first of the last lines that names a problem, and the next one; or nothing."""
        lines = [line.strip() for line in tuple(self._lines)]
        lines = [line for line in lines if line and not line.startswith(_TRACE)]
        for number, line in enumerate(lines):
            if _TELLING.search(line):
                return " ".join(lines[number : number + 2])
        return ""

    def _copy(self, stream: IO[bytes]) -> None:
        for data in stream:
            line = data.decode("utf-8", "replace").rstrip("\n")
            self._lines.append(line)
            record = logging.LogRecord("spark", logging.INFO, "", 0, line, None, None)
            self._file.handle(record)


class Jvm:
    """One JVM at a time; `stop` may come from another thread while `start` waits."""

    def __init__(self, output: Output) -> None:
        """Start nothing yet."""
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._copying: threading.Thread | None = None

    def start(self, spark_conf: Sequence[tuple[str, str]]) -> Gateway:
        """Start a JVM with Spark in it and return the gateway to it; `Retryable` if it ends."""
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder) / "gateway"
            self._process = _spawn(spark_conf, info)
            assert self._process.stdout is not None
            self._copying = self._output.follow(self._process.stdout)
            while not info.exists():
                if self._process.poll() is not None:
                    self._copying.join(timeout=1)
                    raise Retryable(
                        f"the JVM ended at its start with code {self._process.returncode}:"
                        f" {self._output.reason() or 'without a word'}"
                    )
                time.sleep(_POLL_S)
            with info.open("rb") as file:
                (port,) = struct.unpack(">i", file.read(4))
                (length,) = struct.unpack(">i", file.read(4))
                secret = file.read(length).decode()
        return _connected(port, secret)

    @property
    def is_alive(self) -> bool:
        """True while its process runs."""
        return self._process is not None and self._process.poll() is None

    def outlives(self, timeout_s: float) -> bool:
        """Tell whether it is still there after a while; a killed one takes a moment to go."""
        if self._process is None:
            return False
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Close the pipe that keeps it alive; kill it when it does not follow."""
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


def _spawn(spark_conf: Sequence[tuple[str, str]], info: Path) -> subprocess.Popen[bytes]:
    """Run Spark's own script, which knows its class path and the operator's spark-env.sh."""
    home = importlib.import_module("pyspark.find_spark_home")._find_spark_home()
    command = [os.path.join(home, "bin", "spark-submit")]
    for name, value in spark_conf:
        command += ["--conf", f"{name}={value}"]
    return subprocess.Popen(
        [*command, "pyspark-shell"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A session of its own: an interrupt from the keyboard is for us, and we end the JVM.
        start_new_session=True,
        env={
            **os.environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
        },
    )


def _connected(port: int, secret: str) -> Gateway:
    """Return pyspark's gateway to a JVM that runs already."""
    from pyspark.java_gateway import launch_gateway

    with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
        return launch_gateway()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
