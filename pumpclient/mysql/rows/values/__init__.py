"""The encoding of each column type's values in a row image."""
