"""Observation: metrics and status pages."""
