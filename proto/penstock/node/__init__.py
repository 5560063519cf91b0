"""What every program has: its start and end, logs, pages, output and metrics."""
