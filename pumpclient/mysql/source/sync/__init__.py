"""Reads the relay log from the checkpoint on and turns it into transactions."""
