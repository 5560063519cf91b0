"""The segments of a folder: numbered without gaps, each as long as its successor says."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import Corrupt
from penstock.log.files import Files
from penstock.log.segment import CutShort, Segment, open_segment, segment_name


class MissingSegments(Corrupt):
    """Segments `first` to `last` are not there, later ones are.

    All that was in them has timestamps in (after_ts, up_to_ts], which the headers beside them tell.
    """

    def __init__(
        self, folder: Path, first: int, last: int, *, after_ts: int, up_to_ts: int
    ) -> None:
        which = segment_name(first) if first == last else f"{first} to {last}, from this one on,"
        super().__init__(
            str(folder / segment_name(first)),
            0,
            f"segment {which} is missing, {segment_name(last + 1)} is there: its binlogs have"
            f" timestamps in ({after_ts}, {up_to_ts}]",
        )
        self.first = first
        self.last = last
        self.after_ts = after_ts
        self.up_to_ts = up_to_ts


def open_chain(files: Files, folder: Path) -> dict[int, Segment]:
    """Return all segments in `folder`, those that have a successor with their end.

    Raises `Corrupt`, naming what is missing or too short.
    """
    names = files.names(folder)
    numbers = sorted(int(name[:-4]) for name in names if name.endswith(".seg"))
    for left_over in (name for name in names if name.endswith(".new")):
        files.remove(folder / left_over)  # A crash came before it was given its name.
    # The process before may have died between naming a segment and making the name durable.
    files.sync_folder(folder)
    found: dict[int, Segment] = {}
    for number in numbers:
        path = folder / segment_name(number)
        if found and number - 1 not in found:
            before, after = found[max(found)], open_segment(files, path, number)
            raise MissingSegments(
                folder,
                before.number + 1,
                number - 1,
                after_ts=before.earlier_largest_ts,
                up_to_ts=after.earlier_largest_ts,
            )
        found[number] = open_segment(files, path, number)
        if number - 1 in found:
            _seal(files, found[number - 1], found[number])
    return found


def _seal(files: Files, segment: Segment, successor: Segment) -> None:
    file = files.open(segment.path)
    try:
        size = file.size()
    finally:
        file.close()
    if size < successor.previous_end:
        known = f"{successor.path.name} knows {successor.previous_end} bytes"
        raise CutShort(str(segment.path), size, f"the file ends here, but {known}")
    segment.end = segment.synced = successor.previous_end
