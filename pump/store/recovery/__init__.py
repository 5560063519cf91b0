"""From the log to the index at a start."""
