"""Fork server: the process from which Spark forks its tasks, with all modules already imported.

On a local master Spark runs `python -m drainer.task.fork_server` in place of its own daemon, which
imports nothing. With that daemon each task spends most of a second on the same imports, and has its
own copy.
"""

from __future__ import annotations

import importlib

importlib.import_module("drainer.task.work_loop")

if __name__ == "__main__":
    importlib.import_module("pyspark.daemon").manager()
