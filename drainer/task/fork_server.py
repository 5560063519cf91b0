"""Fork server: the process that Spark forks its tasks from, with their imports done once for all.

Spark runs `python -m drainer.task.fork_server` on a local master in place of its own daemon, which
imports nothing: with that one each task spends most of a second on the same imports, and has its
own copy.
"""

from __future__ import annotations

import importlib

importlib.import_module("drainer.task.work_loop")

if __name__ == "__main__":
    importlib.import_module("pyspark.daemon").manager()
