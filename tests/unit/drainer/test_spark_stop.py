"""Spark ends the process of a stopped streaming query by SIGTERM; the query then leaves first."""

import signal
import subprocess
import sys

import pytest

# What Spark's process does: it asks the reader, waits for questions, and at its end calls `stop`.
_PROCESS = """
import sys
from types import SimpleNamespace
from pyspark.sql.types import StructType
from drainer.spark_source import source
def close():
    print("leaves", flush=True)
    sys.stdin.readline()
    print("left", flush=True)
source.SourcePlan = lambda *_: SimpleNamespace(initial=dict, close=close)
reader = source.PenstockStreamReader(source.SourceOptions(), StructType())
try:
    reader.initialOffset()
    print("waits", flush=True)
    sys.stdin.readline()
finally:
    reader.stop()
"""


@pytest.mark.parametrize("is_signalled", [True, False])
def test_the_process_of_a_query_leaves_the_cluster_before_spark_ends_it(is_signalled: bool) -> None:
    """Spark signals twice and closes the connection meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        if is_signalled:
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "leaves\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "left\n"
