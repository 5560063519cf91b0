"""Histories and writers, and the state that they must leave."""
