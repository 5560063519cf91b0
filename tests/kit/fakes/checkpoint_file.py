"""A checkpoint in a file, for a sink whose downstream cannot hold one with its changes.

    <data-dir>/savepoint    TOML: consistent, commitTS, schema-version, ddl-intent, [origins],
                                 [pumps]

The name and the first three keys are TiDB-Binlog's, so that its file is continued. A save writes
another file, syncs it, renames it and syncs the folder: a crash leaves the old file or the new one.
What a sink delivered after the saved checkpoint it delivers again, so its consumers must bear that.
"""

import contextlib
import json
import os
import tomllib
from pathlib import Path

from drainer.sinks.checkpoint import Checkpoint
from penstock.codes import Code
from penstock.errors import Malformed, Retryable
from penstock.log.files import Files, OsFiles

NAME = "savepoint"


class CheckpointFile:
    """The file; one process at a time, which the lock of the data-dir sees to."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        """Touch nothing yet; `folder` is created when it is missing."""
        self._folder = folder
        self._files = files or OsFiles()
        self.path = folder / NAME

    def load(self) -> Checkpoint | None:
        """Return what was saved last, None when there is no file; raise `Malformed`."""
        if NAME not in self._files.names(self._folder):
            return None
        file = self._files.open(self.path)
        try:
            text = file.read(0, file.size())
        finally:
            file.close()
        try:
            return Checkpoint.from_fields(tomllib.loads(text.decode()))
        except ValueError as error:  # Neither TOML nor UTF-8.
            raise Malformed(
                f"{self.path} is damaged: {error}",
                hint="put back the commitTS up to which everything was delivered",
                code=Code.BINLOG_UNDECODABLE,
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Store it durably; after `Retryable` the file is the old one or the new one."""
        fields = {
            "consistent": "true" if checkpoint.consistent else "false",
            "commitTS": checkpoint.commit_ts,
            "schema-version": checkpoint.schema_version,
            "ddl-intent": checkpoint.ddl_intent_ts,
        }
        lines = [f"{key} = {value}\n" for key, value in fields.items()]
        # A name in JSON's quotes is a quoted key of TOML, if nothing below a blank is in it.
        if checkpoint.origins:
            places = {json.dumps(name): list(at) for name, at in checkpoint.origins.items()}
            lines += ["[origins]\n", *(f"{name} = {at}\n" for name, at in places.items())]
        if checkpoint.pumps:
            pumps = checkpoint.pumps.items()
            lines += ["[pumps]\n", *(f"{json.dumps(name)} = {ts}\n" for name, ts in pumps)]
        text = "".join(lines)
        fresh = self.path.with_suffix(".new")
        try:
            self._files.names(self._folder)
            file = self._files.create(fresh)
            try:
                file.write([text.encode()], 0)
                file.sync()
            finally:
                file.close()
            self._files.rename(fresh, self.path)
            self._files.sync_folder(self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(fresh)
            reason = error.strerror or os.strerror(error.errno or 0)
            raise Retryable(f"cannot save {self.path}: {reason}", code=Code.ETCD_AWAY) from error
