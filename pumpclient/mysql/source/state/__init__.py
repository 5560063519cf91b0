"""How far a source is, what it leaves out, what an operator overrides."""
