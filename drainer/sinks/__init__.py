"""Where the changes land; one file per downstream."""
