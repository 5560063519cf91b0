"""The way on when segments of the log are gone for good, and an operator has said so.

    000000  000001  (000002)  000003  000004      000002 is missing
    └── given-up/ ──┘          └── the log from now on; all up to `up_to_ts` counts as purged

Nobody can pull past the gap without missing something, so what lies before it is of no use to a
stream: it is set aside, not removed, for `binlogctl dump`. The index goes and is rebuilt from what
is left. Whoever pulls from before the gap's end gets the error for purged binlogs, with the range;
a Drainer that has everything up to there goes on and notices nothing.

What is accepted is one gap, by its last timestamp: the setting may be left behind, and the next gap
is refused again. A crash on the way leaves a gap with the same end, and the next start goes on.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from penstock.errors import Corrupt
from penstock.log.files import Files
from penstock.log.segment_chain import MissingSegments

log = logging.getLogger(__name__)

FOLDER = "given-up"


def give_up(folder: Path, missing: MissingSegments, files: Files, *, accepted_ts: int) -> None:
    """Set aside what lies before a gap, and drop the index; raise `Corrupt` unless it is accepted.

    `folder` is the Pump's; `accepted_ts` is the gap's `up_to_ts` when it is accepted.
    """
    if accepted_ts <= 0 or accepted_ts != missing.up_to_ts:
        raise Corrupt(
            missing.path,
            missing.offset,
            f"{missing.what} (put the files back; or give up all binlogs up to {missing.up_to_ts}"
            f" with accept-loss-up-to-ts = {missing.up_to_ts} in [storage]: Drainers whose"
            " checkpoint is below that are then refused)",
        ) from missing
    aside = folder / FOLDER
    aside.mkdir(exist_ok=True)
    names = [n for n in files.names(folder / "log") if n.endswith(".seg")]
    gone = sorted(n for n in names if int(n[:-4]) < missing.first)
    for name in gone:
        os.rename(folder / "log" / name, aside / name)
    for changed in (aside, folder / "log", folder):
        files.sync_folder(changed)
    shutil.rmtree(folder / "index", ignore_errors=True)
    log.error(
        "%s, as accepted: the binlogs in (%d, %d] are lost, and nobody who lacks any up to %d can"
        " pull from here any more; %d older segments are set aside in %s",
        *(missing, missing.after_ts, missing.up_to_ts, missing.up_to_ts, len(gone), aside),
    )
