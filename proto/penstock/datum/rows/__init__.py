"""Encodes and decodes single rows, with one compiled function for each column."""
