"""Character sets and collations: names, ids, and text to bytes."""
