"""What the downstream does not have as the upstream has it, and who decided so."""
