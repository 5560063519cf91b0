"""Starts real servers as child processes on this machine, for the demo, the benchmarks, the
tests.
"""
