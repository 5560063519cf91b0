"""How the values of each column type lie in a row image."""
