"""Penstock on one machine: the demo, `penstock init`, and real servers as child processes.

A wheel carries the sample files of `deploy/` in `files/`; in a clone they are in `deploy/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_INSTALLED: Final = Path(__file__).parent / "files"
FILES: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "deploy"
"""Sample settings, units, manifests, alerts, and the table of programs."""
