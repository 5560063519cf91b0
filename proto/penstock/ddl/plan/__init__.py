"""Plans statements as jobs for the history."""
