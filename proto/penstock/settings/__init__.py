"""A program's settings: files, environment and flags into frozen dataclasses."""
