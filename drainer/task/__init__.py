"""What Spark ships to its executors: units in, SQL out.

Pure but for `resident` and `fetch`.
"""

from drainer.task import arrow as arrow  # Before anything of it can be used by a thread.
