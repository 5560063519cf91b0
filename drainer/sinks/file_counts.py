"""File counts: what a lake or a folder of files has had written and removed since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FileCounts:
    """Counts of one sink, for any thread to read.

    Each number has one thread that raises it: for files in a folder, what is removed or packed is
    the upkeep's, the others are the sink's.
    """

    commits: int = 0
    """Commits of changes; each table of a lake has its own."""
    rows: int = 0
    """Rows written into a lake's tables, less what only puts files together."""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    """Files that a table names no more, though older versions of it may; or that expired."""
    bytes_removed: int = 0
    compactions: int = 0
    """Commits that put a table's small files together; files that were packed."""
    last_commit_s: float = 0.0
    """Unix time of the last commit of changes, 0 before the first."""
