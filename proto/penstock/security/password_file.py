"""Password file: its first line, read again for each connection, so that it can be replaced."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.errors import NeedsOperator

log = logging.getLogger(__name__)


class PasswordFile:
    """A file with a password; what it holds is in no log."""

    def __init__(self, path: str) -> None:
        """Read it; raise `NeedsOperator` when it cannot be read, or has no first line."""
        self._path = Path(path)
        self._good = self._read()

    def password(self) -> str:
        """Return what the file holds now; what it held last while it cannot be used."""
        try:
            found = self._read()
        except NeedsOperator as error:
            log.error("the password of before is used: %s", error)
            return self._good
        if found != self._good:
            log.info("connections use the password read again from %s", self._path)
            self._good = found
        return found

    def _read(self) -> str:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise NeedsOperator(
                f"cannot read the password-file {self._path}: {reason}",
                hint="check path and rights",
            ) from error
        if not lines or not lines[0]:
            raise NeedsOperator(
                f"the password-file {self._path} is empty", hint="write the password into it"
            )
        return lines[0]

    def __repr__(self) -> str:
        """Return the path."""
        return f"PasswordFile({self._path})"
