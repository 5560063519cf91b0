"""A batch's changes of one table, compacted to what is left of them."""
