"""The documentation is built without a warning, and every page of it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.site import PAGES, linked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; a link that leads nowhere, or to no heading, is a warning, and that an error."""
    made = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return made


def test_every_page_is_in_the_menu_and_loads_nothing_from_elsewhere(site: Path) -> None:
    home = (site / "index.html").read_text()
    own = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    for page in (*map(str, own), *PAGES.values(), "reference/settings.md"):
        place = page.removesuffix(".md").removesuffix("index")
        assert f'href="{place}/"' in home or place == "", page
    assert "https://fonts." not in home


def test_every_setting_is_on_its_page(site: Path) -> None:
    text = (site / "reference/settings/index.html").read_text()
    for name in ("stop-write-at-available", "batch-rows-max", "rows-per-chunk", "stop-timeout-s"):
        assert name in text


def test_a_link_between_files_becomes_one_between_pages() -> None:
    text = "[a](../README.md#x), [b](../../pump/store/index.py), [c](https://e.org), [d](#e)"
    assert linked(text, "drainer/guide/applying.md", "drainer/applying.md") == (
        "[a](overview.md#x), b (`pump/store/index.py`), [c](https://e.org), [d](#e)"
    )
