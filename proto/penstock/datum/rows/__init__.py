"""Rows one at a time, with one compiled function for each column."""
