"""Runs Penstock: set-up, sample settings, local servers, the demo."""
