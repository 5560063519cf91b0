"""Service: what writers and Drainers call, and group commit and pulls that serve them."""
