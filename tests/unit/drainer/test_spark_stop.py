"""Spark ends the process of a stopped streaming query by SIGTERM; the query then leaves first."""

import signal
import subprocess
import sys

# What Spark's process does: it asks the reader, waits for questions, and at its end calls `stop`.
_PROCESS = """
from types import SimpleNamespace
import sys
from pyspark.sql.types import StructType
from drainer.spark_source import source
source.SourcePlan = lambda *_: SimpleNamespace(initial=dict, close=lambda: print("left"))
reader = source.PenstockStreamReader(source.SourceOptions(), StructType())
try:
    reader.initialOffset()
    print("waits", flush=True)
    sys.stdin.read()
finally:
    reader.stop()
"""


def test_the_process_of_a_query_leaves_the_cluster_when_spark_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "left\n"
