"""Twins in memory, and nodes without what is around them."""
