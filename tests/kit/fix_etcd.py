"""Placeholder until its fixture lands."""
