"""Arrow looks for pandas once, before any thread runs; what Spark does about it later is no matter.

Each story runs in a fresh process, because a process looks only once.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

STORY = """
    import sys
    import threading

    import numpy as np
    import pyarrow as pa

    from drainer.task import row_changes as batches
    from drainer.spark import job as spark

    failed, met = [], []

    def convert():
        try:
            assert pa.array([1, 2]).to_pylist() == [1, 2]
            assert pa.array(np.arange(3)).to_pylist() == [0, 1, 2]
        except BaseException as error:
            failed.append(error)

    def meanwhile(event, arguments):
        if event == "import" and "pyspark.testing.utils" in sys.modules and not met:
            met.append(arguments[0])
            thread = threading.Thread(target=convert)
            thread.start()
            thread.join()

    sys.addaudithook(meanwhile)
    spark._import_spark()
    assert met, "Spark was imported without a conversion meanwhile"
    assert not failed, failed
    assert "pandas" not in sys.modules
"""


def test_rows_that_wait_are_converted_while_spark_is_being_imported() -> None:
    in_a_fresh_process(STORY)


def test_who_needs_pandas_can_have_it_all_the_same() -> None:
    in_a_fresh_process("""
        from drainer.task import row_changes as batches
        import pandas
        import pyarrow as pa
        table = pa.table({"a": [1, 2]})
        assert table.to_pandas()["a"].tolist() == [1, 2]
    """)


def in_a_fresh_process(story: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(story)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
