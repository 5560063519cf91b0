"""The merged stream into steps: batches of rows, and DDLs that stand alone."""
