"""Claim check: writes messages that are too large for a topic to files.

    <folder>/<topic>/<commit_ts>-<first 32 digits of the SHA-256 of the message>

The message determines the name, so a retry writes the same file again. The file is durable before
the Kafka transaction commits whose message refers to it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file, sync_folder


class ClaimCheck:
    """Stores messages in a folder, which must exist: it may be a mount that has gone away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, topic: str, commit_ts: int, message: bytes) -> str:
        """Store a message durably and return its file's URL; raise `OSError`."""
        place = self._folder / topic
        if not place.is_dir():
            place.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder)
        path = place / f"{commit_ts}-{hashlib.sha256(message).hexdigest()[:32]}"
        replace_file(path, message, mode=0o600)
        return path.as_uri()

    def unusable(self, error: OSError) -> NeedsOperator:
        return NeedsOperator(
            f"claim-check-dir {self._folder}: {error.strerror or error}",
            hint="let the Drainer write into that folder, mounted if it is a mount; nothing is"
            " lost: the batch is sent again",
            code=Code.SINK_FILE,
        )
