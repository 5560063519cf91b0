"""The state of a source: its progress, its skipped tables, the operator's overrides."""
