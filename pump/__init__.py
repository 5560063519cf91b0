"""Pump, the storage node: persists writers' binlogs and streams them in commit order."""
