"""Append-only files: frames, segments, and a log of segments."""
