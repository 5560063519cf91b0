"""Tasks: what Spark ships to its executors; units in, SQL out.

Pure but for `work_loop` and `row_fetcher`.

Arrow and Spark do without pandas here: both import it where they find it, and nothing needs it. It
would cost each process 50 MB and half a second. Importing `drainer.task` lets Arrow look for it
once, while no thread runs yet that could meet the search half done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

PANDAS = "pandas"


class _Absent:
    """An importer that comes first and says that there is no pandas.

    None in `sys.modules` would not do: Arrow's compiled import takes that for the module itself.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> None:
        if name == PANDAS:
            raise ModuleNotFoundError(f"{name} is not used here", name=name)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Make imports of pandas fail within the `with`, unless it is already imported."""
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


with without_pandas():
    pa.array([0])  # Arrow looks for pandas at its first conversion, and never again.
