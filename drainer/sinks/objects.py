"""Objects: a folder in an object store of S3, with those methods of `Path` that sinks use.

A folder is the common beginning of keys, so it needs not be made. Each object is written as a whole
and is durable then, so nothing is synced. Two properties of a disk must be replaced:

**No lock.** A commit of Delta creates an object only if it does not exist (`If-None-Match`), as
deltalake does by default. `check_conditions` refuses a store that ignores this condition.

**No rename.** A folder moves by copies: a mark in the new folder, then copies, of the log last, so
that no reader sees a table in part; then the old objects are removed, the log first; then the mark.
As long as the mark exists the move has not ended (`is_moved`), and it can be repeated.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import obstore
from obstore import exceptions

from drainer.task.sql.lake_objects import RETRY_S, is_plain, open_bucket
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.failpoints import point

MOVING: Final = "_penstock_moving"
"""The object that marks a folder whose move has not ended."""
ANSWERED: Final = re.compile(r"status code: 4(?!29|08)\d\d")
"""What an error says if the store has answered; a busy one answers 408, 429 or 5xx."""
_LOG: Final = "/_delta_log/"
_REFUSALS = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)

object_moved = point("drainer.object_moved")
"""An object of a folder that moves is copied or removed."""


class Bucket:
    """A bucket, whose credentials are in the environment alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = open_bucket(name)
        self.options = {"retry_timeout": f"{RETRY_S}s", "allow_http": str(is_plain()).lower()}
        """The options of deltalake, without any credential."""


class ObjectPath:
    """A key of a bucket: an object, or the folder of all objects below it."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key.strip("/")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}")

    def joinpath(self, *names: str) -> ObjectPath:
        return ObjectPath(self.bucket, "/".join((self.key, *names)))

    def __str__(self) -> str:
        return f"s3://{self.bucket.name}/{self.key}"

    def mkdir(self, mode: int = 0, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists as long as it has objects."""

    def rmdir(self) -> None:
        """Do nothing, as `mkdir`."""

    def exists(self) -> bool:
        with suppress(FileNotFoundError):
            self.head()
            return True
        return next(self.objects(), None) is not None

    def head(self) -> Any:
        with _errors(self):
            return obstore.head(self.bucket.store, self.key)

    def read_bytes(self) -> bytes:
        with _errors(self):
            return bytes(obstore.get(self.bucket.store, self.key).bytes())

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def read_tagged(self) -> tuple[bytes, str]:
        with _errors(self):
            found = obstore.get(self.bucket.store, self.key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def copy_to(self, file: Path) -> None:
        with _errors(self), file.open("wb") as out:
            for chunk in obstore.get(self.bucket.store, self.key):
                out.write(chunk)

    def put(self, data: bytes | Path, *, after: str | None = "") -> str:
        """Write an object, and return its tag; `FileExistsError` if it is not as expected.

        `after` is the tag of the object to replace, or None for a new object.
        """
        mode: Any = "overwrite" if after == "" else "create" if after is None else {"e_tag": after}
        with _errors(self):
            made = obstore.put(
                self.bucket.store, self.key, data, mode=mode,
                use_multipart=None if mode == "overwrite" else False,
            )  # fmt: skip
        return str(made["e_tag"])

    def create(self) -> bool:
        """Create an empty object; return False if one exists, as far as the store compares."""
        try:
            self.put(b"", after=None)
        except FileExistsError:
            return False
        return True

    def touch(self) -> None:
        self.put(b"")

    def unlink(self) -> None:
        with _errors(self):
            obstore.delete(self.bucket.store, self.key)

    def iterdir(self) -> Iterator[ObjectPath]:
        with _errors(self):
            found = obstore.list_with_delimiter(self.bucket.store, self.key)
        for each in found["common_prefixes"]:
            yield ObjectPath(self.bucket, each)
        for item in found["objects"]:
            yield ObjectPath(self.bucket, item["path"])

    def objects(self) -> Iterator[Any]:
        """Yield each object below, with `path` and `last_modified`."""
        with _errors(self):
            for part in obstore.list(self.bucket.store, f"{self.key}/"):
                yield from part

    def is_moving(self) -> bool:
        return (self / MOVING).exists()

    def move(self, new: ObjectPath) -> None:
        """Move all objects below to another folder; repeat a move that was interrupted."""
        mark = new / MOVING
        if new.exists() and not new.is_moving():
            raise FileExistsError(errno.EEXIST, "a table is to be moved here", str(new))
        mark.touch()
        store, marks = self.bucket.store, f"{self.key}/{MOVING}"
        own = [str(each["path"]) for each in self.objects() if each["path"] != marks]
        own.sort(key=lambda key: (_LOG in key, key))  # The log is last, and its versions in order.
        for key in own:
            with _errors(self):
                obstore.copy(store, key, f"{new.key}{key.removeprefix(self.key)}")
            object_moved()
        for key in reversed(own):
            with _errors(self):
                obstore.delete(store, key)
            object_moved()
        mark.unlink()

    def remove_all(self) -> None:
        for each in list(self.objects()):
            ObjectPath(self.bucket, each["path"]).unlink()


@contextmanager
def _errors(path: ObjectPath) -> Iterator[None]:
    """Raise the errors of a file for those of an object."""
    try:
        yield
    except exceptions.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object", str(path)) from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "the object exists", str(path)) from error
    except _REFUSALS as error:
        raise PermissionError(errno.EACCES, "the store refuses access", str(path)) from error
    except exceptions.BaseError as error:
        if "NoSuchBucket" in str(error):
            raise NeedsOperator(
                f"there is no bucket {path.bucket.name!r}",
                "create it, or correct the URL and AWS_ENDPOINT_URL",
                Code.SINK_FILE,
            ) from error
        kind = OSError if ANSWERED.search(str(error)) else ConnectionError
        raise kind(f"{path}: {str(error).splitlines()[0][:300]}") from error


def check_conditions(folder: ObjectPath, *, replaces: bool = False) -> None:
    """Raise `NeedsOperator` for a store that creates an object which exists already.

    With `replaces` also for a store that replaces an object which has another tag.
    """
    probe, ignored = folder / "condition", ""
    if probe.create() and probe.create():
        ignored = "If-None-Match"
    elif replaces:
        with suppress(FileExistsError):
            probe.put(b"", after='"0"')
            ignored = "If-Match"
    if not ignored:
        return
    raise NeedsOperator(
        f"the object store of {folder} ignores {ignored}: two programs could make the same"
        " commit, and the changes of one would be lost",
        "use a store with conditional writes, such as Amazon S3, MinIO, R2 or Versity S3 Gateway",
        Code.SINK_SETTING,
    )
