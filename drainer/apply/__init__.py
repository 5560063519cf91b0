"""What runs on Spark executors: work units in, SQL out. Pure but for `task` and `fetching`."""

from drainer.apply import arrow as arrow  # Before anything of it can be used by a thread.
