"""Spark: the resident job, its tasks' connections, its JVM, as the Drainer sees them."""
