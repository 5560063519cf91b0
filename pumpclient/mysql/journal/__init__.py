"""Transactions that may have been left open on the Pumps, and their end."""
