"""The Drainer merges the binlogs of all Pumps in commit order and applies them downstream."""
