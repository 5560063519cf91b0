"""Target: the folder of files that a URL names, and its options.

    file:///absolute/folder?compress=gzip&retention=7d&max-file-size=512MiB&time-zone=%2B08:00
    file:relative/folder

`compress` applies to full files, which TiDB-Binlog's tools then cannot read before they are
unpacked. `retention` is how long full files are kept; without it, they are kept forever.
`time-zone` is that of the texts of TIMESTAMPs, UTC without it. It cannot change after the folder's
first savepoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from drainer.task.events.tidb_binlog_file import zone_offset
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.settings.load import duration_s, size_bytes
from penstock.settings.setting import out_of_range

FILE_BYTES_MAX = 512 << 20
"""TiDB-Binlog's size of a file."""
UTC = "+00:00"
GZIP = "gzip"
_KNOWN = ("compress", "max-file-size", "retention", "time-zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTarget:
    """The location of the files, and their options."""

    folder: Path
    compresses: bool = False
    retention_s: float = 0.0
    """How long full files are kept; 0: forever."""
    file_bytes_max: int = FILE_BYTES_MAX
    """A file is full once it has reached this size."""
    time_zone: str = UTC


def parse_files_url(url: str) -> FilesTarget:
    """Return the parts of `url`; raise `NeedsOperator` for an unknown option or value."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.strip("/"):
        raise NeedsOperator(
            f"{url!r} names no folder",
            hint="write file:///absolute/folder or file:relative/folder",
            code=Code.URL_INVALID,
        )
    try:
        asked = dict(parse_qsl(parts.query, True, bool(parts.query)))
    except ValueError as error:
        raise NeedsOperator(
            f"{url!r}: {error}", hint="write ?name=value&name=value", code=Code.URL_INVALID
        ) from error
    for key in asked:
        if key not in _KNOWN:
            raise NeedsOperator(
                f"unknown downstream option {key!r}",
                hint=f"known are {', '.join(_KNOWN)}",
                code=Code.URL_INVALID,
            )
    compress = asked.get("compress", "")
    if compress not in ("", GZIP):
        raise out_of_range("compress", compress, f"use {GZIP}, or leave it out")
    try:
        retention_s = duration_s(asked.get("retention", "0"))
        file_bytes_max = size_bytes(asked.get("max-file-size", str(FILE_BYTES_MAX)))
    except ValueError as error:
        raise NeedsOperator(
            f"{url!r}: {error}", hint="write 7d, and 512MiB", code=Code.URL_INVALID
        ) from error
    if file_bytes_max < 1:
        raise out_of_range("max-file-size", file_bytes_max, "it must be above zero")
    zone = asked.get("time-zone", UTC)
    zone_offset(zone)
    return FilesTarget(
        folder=Path(path),
        compresses=compress == GZIP,
        retention_s=retention_s,
        file_bytes_max=file_bytes_max,
        time_zone=zone,
    )
