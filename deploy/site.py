"""The documentation site: includes pages that are kept beside the code when MkDocs builds it.

A hook of MkDocs (`mkdocs.yml`). Links between such pages are turned into links of the site; a link
to a file without a page is shown as the name of that file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from deploy import error_pages, reference_pages

_ROOT = Path(__file__).parents[1]
_GUIDES = sorted((_ROOT / "drainer/guide").glob("*.md"))
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "ctl/README.md": "operate/ctl.md",
    "deploy/README.md": "operate/running.md",
    "deploy/monitoring/runbook.md": "operate/runbook.md",
    "drainer/README.md": "drainer/overview.md",
    "pump/README.md": "operate/pump.md",
    "pumpclient/README.md": "writers/pumpclient.md",
    "pumpclient/mysql/README.md": "writers/mysql.md",
    **{f"drainer/guide/{path.name}": f"drainer/{path.name}" for path in _GUIDES},
}
"""Files of the project, and their places in the site."""
_FROM_ROOT = "."
"""The place of a generated page whose links are relative to the root folder."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        text = (_ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, source, page)))
    for page, text in (*reference_pages.pages(), (error_pages.INDEX, error_pages.index())):
        files.append(File.generated(config, page, content=text))
    for page, text in error_pages.pages():
        files.append(File.generated(config, page, content=linked(text, _FROM_ROOT, page)))
    return files


def linked(text: str, source: str, page: str) -> str:
    def link(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3] or ""
        if not target or "://" in target:
            return found[0]
        file = os.path.normpath(PurePosixPath(source).parent / target)
        of_site = PAGES.get(file, file.removeprefix("docs/") if file.startswith("docs/") else "")
        if of_site:
            there = os.path.relpath(of_site, PurePosixPath(page).parent)
            return f"[{shown}]({there}{anchor})"
        return shown if "`" in shown or shown == file else f"{shown} (`{file}`)"

    return _LINK.sub(link, text)
