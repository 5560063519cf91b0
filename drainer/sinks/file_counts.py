"""File counts: files and rows that a lake or a folder wrote and removed since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FileCounts:
    """Counts of one sink, for any thread to read.

    One thread raises each number. For files in a folder, upkeep counts removed and packed files,
    the sink counts the rest.
    """

    commits: int = 0
    """Commits of changes; each table of a lake counts separately."""
    rows: int = 0
    """Rows written into a lake's tables, without rewrites that only combine files."""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    """Files that expired, or that a table no longer names, though older versions of it may."""
    bytes_removed: int = 0
    compactions: int = 0
    """Commits that combine a table's small files, or files that were packed."""
    last_commit_s: float = 0.0
    """Unix time of the last commit of changes, 0 before the first."""
