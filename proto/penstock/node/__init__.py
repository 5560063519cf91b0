"""The parts that every program shares: start and end, logs, pages, output and metrics."""
