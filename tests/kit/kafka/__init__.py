"""Readers of topics, as a program has them that follows our rules."""
