"""What runs on Spark executors: work units in, SQL out; no server, no clock."""
