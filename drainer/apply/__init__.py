"""What runs on Spark executors: work units in, SQL out. Pure but for `task` and `fetching`."""
