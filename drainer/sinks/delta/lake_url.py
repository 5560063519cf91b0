"""Target: the folder of a lake that a URL names, and the options of its tables.

    delta:///absolute/folder?interval=30s&batch-bytes=64MiB&retention=7d&optimize=1h
    delta:relative/folder

`interval` is how long changes gather before they are committed, `batch-bytes` how many bytes of
them at most; `interval=0` commits as soon as the last commit has finished. `retention` is for how
long any state of `_penstock/versions` can be read. `optimize` is how often small files are combined
and old ones removed, 0: never. `drop-column=keep` keeps a dropped column with its values; new rows
are NULL there. `accept=shop.items@17` accepts version 17 of a table from any writer.
`mode=changes` keeps every change, and not the rows as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from drainer.settings.syncer_section import CHANGES, MIRROR
from drainer.sinks.protocol import Gathering
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.settings.load import duration_s, size_bytes
from penstock.settings.setting import out_of_range

_DEFAULTS = {
    "mode": MIRROR,
    "interval": "30s",
    "batch-bytes": "64MiB",
    "retention": "7d",
    "optimize": "1h",
    "drop-column": "drop",
    "accept": "",
}
_DROP, _KEEP = "drop", "keep"
_FOLDER = re.compile(r"[A-Za-z0-9_./~+=@, -]+")
_ACCEPTED = re.compile(r"(.+)@(\d+)")
_HINT = "write delta:///absolute/folder?interval=30s or delta:relative/folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTarget:
    """The location of the tables, and their options."""

    folder: Path
    mode: str = MIRROR
    """The content of its tables: mirrors of upstream's, or logs of their changes."""
    gathering: Gathering | None = None
    retention_s: float = 7 * 86400.0
    optimize_s: float = 3600.0
    """How often upkeep is due; 0: never."""
    keeps_columns: bool = False
    """True when a dropped column stays."""
    accepted: frozenset[tuple[str, int]] = frozenset()
    """Versions of tables that are accepted from any writer."""


def parse_delta_url(url: str) -> LakeTarget:
    """Return the parts of `url`; raise `NeedsOperator` for an unknown option or value."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query, True, bool(parts.query)))
    except ValueError as error:
        raise NeedsOperator(f"{url!r}: {error}", hint=_HINT, code=Code.URL_INVALID) from error
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.strip("/"):
        raise NeedsOperator(f"{url!r} names no folder", hint=_HINT, code=Code.URL_INVALID)
    if not _FOLDER.fullmatch(path):
        raise NeedsOperator(
            f"readers of Delta tables do not find their way to {path!r}",
            hint="name a folder of letters, digits and _ . ~ + = @ , - alone",
            code=Code.URL_INVALID,
        )
    for key in asked:
        if key not in _DEFAULTS:
            raise NeedsOperator(
                f"unknown downstream option {key!r}",
                hint=f"known are {', '.join(_DEFAULTS)}",
                code=Code.URL_INVALID,
            )
    chosen = _DEFAULTS | asked
    try:
        interval_s = duration_s(chosen["interval"])
        batch_bytes = size_bytes(chosen["batch-bytes"])
        retention_s = duration_s(chosen["retention"])
        optimize_s = duration_s(chosen["optimize"])
    except ValueError as error:
        raise NeedsOperator(
            f"{url!r}: {error}", hint="write 30s, 7d, and 64MiB", code=Code.URL_INVALID
        ) from error
    if not 1 << 16 <= batch_bytes <= 1 << 30:
        raise out_of_range("batch-bytes", batch_bytes, "64 KiB to 1 GiB is the range")
    _check_choices(chosen)
    if chosen["mode"] == CHANGES and "drop-column" in asked:
        raise out_of_range(
            "drop-column", asked["drop-column"], "a change log keeps every column: leave it out"
        )
    return LakeTarget(
        folder=Path(path).absolute(),
        mode=chosen["mode"],
        gathering=Gathering(interval_s, batch_bytes) if interval_s else None,
        retention_s=retention_s,
        optimize_s=optimize_s,
        keeps_columns=chosen["drop-column"] == _KEEP,
        accepted=_accepted(chosen["accept"]),
    )


def _check_choices(chosen: Mapping[str, str]) -> None:
    for option, known in (("mode", (MIRROR, CHANGES)), ("drop-column", (_DROP, _KEEP))):
        if chosen[option] not in known:
            raise out_of_range(option, chosen[option], f"use {' or '.join(known)}")


def _accepted(text: str) -> frozenset[tuple[str, int]]:
    found = [_ACCEPTED.fullmatch(each) for each in text.split(",") if each]
    if not all(found):
        raise out_of_range("accept", text, "write schema.table@version, comma-separated")
    return frozenset((each[1], int(each[2])) for each in found if each)
