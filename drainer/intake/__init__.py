"""The streams of all Pumps into one, in the order of commit_ts."""
