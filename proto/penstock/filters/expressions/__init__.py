"""Compiles and evaluates SQL expressions over the columns of one table."""
