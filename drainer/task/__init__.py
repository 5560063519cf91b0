"""Tasks: the code that Spark ships to its executors; units in, SQL out.

All of it is pure except `work_loop` and `row_fetch`.

Arrow and Spark import pandas if it is installed, but nothing here needs it, and it would cost each
process 50 MB and half a second. They therefore run without pandas here. Importing `drainer.task`
makes Arrow search for it once, before any thread runs that could use a half-finished search.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

PANDAS = "pandas"


class _Absent:
    """An importer that is asked first and reports that pandas is missing.

    None in `sys.modules` would not suffice: Arrow's compiled import takes it for the module itself.
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
    pa.array([0])  # Arrow searches at its first conversion only.
