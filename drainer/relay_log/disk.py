"""What a disk that does not take the relay log means for the Drainer."""

from __future__ import annotations

import errno

from penstock.errors import NeedsOperator
from penstock.log.segments import WriteFailed


def failed_write(error: WriteFailed) -> Exception:
    """Return what to raise: a full disk needs a human, anything else may pass."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NeedsOperator(
            f"no space for the relay log: {error}",
            hint="make room on its disk, or give it another log-dir; nothing was applied "
            "that is not in it",
        )
    return error
