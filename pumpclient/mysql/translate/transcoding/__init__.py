"""Transcodes rows events to the row bytes of a table's binlogs."""
