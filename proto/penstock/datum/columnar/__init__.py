"""Decodes all rows of a batch column by column; needs numpy and Arrow."""
