"""One Pump: keeps what writers gave it, and streams it back in commit order."""
