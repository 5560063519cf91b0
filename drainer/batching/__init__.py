"""Batching: cuts the merged stream into steps, which are batches of rows or stand alone."""
