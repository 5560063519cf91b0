"""Rows that a task gets from the Pumps by itself."""
