"""Rewrites a statement for another server, or with other names."""
