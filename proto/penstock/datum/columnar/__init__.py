"""All rows of a batch at once, a column at a time; needs numpy and Arrow."""
