"""The text of a statement as tokens, and a statement as frozen values."""
