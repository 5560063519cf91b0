"""Spark: the Drainer's side of the resident job, its tasks' connections and its JVM."""
