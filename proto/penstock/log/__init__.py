"""Append-only files: one record, one file, one log."""
