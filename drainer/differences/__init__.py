"""Differences: what the downstream does not have as the upstream has it, and because of what."""
