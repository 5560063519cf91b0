"""The stages from the merge to the downstream."""
