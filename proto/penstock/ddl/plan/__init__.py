"""Statements into jobs for the history."""
