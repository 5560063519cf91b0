"""Apply: turns batches into SQL or messages, and commits them downstream with the checkpoint."""
