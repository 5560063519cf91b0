"""The complete pipeline on real data, from writers to a downstream that is compared row by row."""
