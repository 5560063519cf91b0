"""Binlogs as values and as bytes, and the messages that carry them."""
