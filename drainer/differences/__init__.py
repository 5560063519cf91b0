"""Differences: how the downstream differs from the upstream, and why."""
