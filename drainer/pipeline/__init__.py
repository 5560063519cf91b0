"""Pipeline: the stages from the merge to the downstream."""
