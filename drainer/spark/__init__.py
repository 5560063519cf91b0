"""Spark's side in the Drainer: the resident job, its tasks' connections, its JVM."""
