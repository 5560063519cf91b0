"""Lake objects: the bucket of a lake in an object store, and a table's files as local copies.

Region, endpoint and credentials are those of the environment, which deltalake reads as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import S3Store

if TYPE_CHECKING:
    from deltalake import DeltaTable

RETRY_S: Final = 5
"""How long the libraries retry; the sink retries above them, and reports the outage."""


def is_plain() -> bool:
    """Return whether the endpoint is without TLS."""
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return url.startswith("http://")


def open_bucket(name: str) -> S3Store:
    return S3Store(
        name,
        client_options={"allow_http": is_plain()},
        retry_config={"retry_timeout": timedelta(seconds=RETRY_S)},
    )


@contextmanager
def downloaded(table: DeltaTable) -> Iterator[str]:
    """Yield a folder with copies of a table's files, while this is entered."""
    address = urlsplit(table.table_uri)
    store, above = open_bucket(address.netloc), unquote(address.path).strip("/")
    with TemporaryDirectory(prefix="penstock-lake-") as folder:
        for uri in table.file_uris():
            key = urlsplit(uri).path.lstrip("/")
            path = Path(folder, key.removeprefix(f"{above}/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for chunk in obstore.get(store, key):
                    file.write(chunk)
        yield folder
