"""The documentation is built without a warning, and every page of it is found."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
    text = "[a](../../docs/console.md)"
    assert linked(text, "drainer/guide/applying.md", "drainer/applying.md") == "[a](../console.md)"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of ours on a page for users, with the page."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            for line in re.findall(r"^(?:\$ )?penstock (.*?)(?: &)?$", block, re.MULTILINE):
                yield page.name, line.split()


def test_every_command_of_the_pages_is_one_and_takes_what_it_is_given() -> None:
    helps: dict[tuple[str, ...], str] = {}
    for page, words in commands():
        named = tuple(itertools.takewhile(lambda word: not word.startswith("-"), words))
        program = named[:2] if named[0] in {"ctl", "source"} else named[:1]
        if program not in helps:
            asked = [sys.executable, "-m", "penstock", *program, "--help"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (page, program, done.stderr)
            helps[program] = done.stdout
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in helps[program], (page, words)
    assert len(helps) >= 10
