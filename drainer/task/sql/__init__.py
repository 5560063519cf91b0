"""Rows into SQL: columns of many, rows of few, and each change by itself."""
