"""What writers and Drainers call: the two services, group commit, pulls."""
