"""The relay log into transactions, from the checkpoint on."""
