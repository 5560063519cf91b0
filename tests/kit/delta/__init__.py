"""Readers of lakes that share no code with the product."""
