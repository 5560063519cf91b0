"""The documentation is built without a warning, and every page of it is found."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.site import INDEX, PAGES, linked, messages_of_sites, options_of_a_writer, page_of
from drainer.settings.config import DrainerConfig
from drainer.settings.targets import KafkaTarget, target_of
from penstock import __version__
from penstock.codes import SUBJECTS, Code
from penstock.ctl.console.__main__ import ADDRESS as CONSOLE
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.local.run.preflight import acls, judge_server
from penstock.settings.load import read_settings
from pump.config import PumpConfig
from pumpclient.mysql.source.checks import FOLLOWING, LOADING, LOCKING
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.options import Options

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
    reference = [f"reference/{each}.md" for each in ("settings", "options", "commands")]
    generated = (*reference, INDEX, *map(page_of, SUBJECTS))
    for page in (*map(str, own), *PAGES.values(), *generated):
        place = page.removesuffix(".md").removesuffix("index")
        assert f'href="{place}/"' in home or place == "", page
    assert "https://fonts." not in home


def test_the_pictures_are_files_of_ours_that_load_nothing(site: Path) -> None:
    shown = re.findall(r'<img [^>]*src="([^"]+)"', (site / "how_it_works/index.html").read_text())
    assert len(shown) == 3
    for source in shown:
        picture = (site / "how_it_works" / source).resolve().read_text()
        assert "<title>" in picture
        assert set(re.findall(r"https?://[^\"]+", picture)) == {"http://www.w3.org/2000/svg"}


def test_every_setting_is_on_its_page(site: Path) -> None:
    text = (site / "reference/settings/index.html").read_text()
    for name in ("stop-write-at-available", "batch-rows-max", "rate-bytes-per-s", "stop-timeout-s"):
        assert name in text


def test_every_option_of_a_writer_is_explained_with_its_default() -> None:
    rows = {name: (default, text) for name, _, default, text in options_of_a_writer()}
    assert set(rows) == {f"`{each.name}`" for each in dataclasses.fields(Options)}
    for name, (default, text) in rows.items():
        value = getattr(Options(), name.strip("`"))
        assert eval(default.strip("`")) == value  # What the page shows is an expression of ours.
        assert text, name


def test_every_command_is_shown_with_its_flags(site: Path) -> None:
    text = (site / "reference/commands/index.html").read_text()
    for name, flag in (
        ("penstock ctl lost-pump", "--accept-loss-after"),
        ("penstock source reload", "--accept-gap"),
        ("penstock drainer ddl", "replace"),
        ("penstock verify", "--max-differences"),
        ("penstock demo", "--keep"),
    ):
        assert f'id="{name.replace(" ", "-")}"' in text
        assert flag in text


def test_every_code_has_its_place_with_what_it_means_and_the_messages_that_show_it(
    site: Path,
) -> None:
    index = (site / "reference/errors/index.html").read_text()
    for code in Code:
        subject = f"{code.value // 1000}xxx"
        assert f'href="{subject}/#{str(code).lower()}"' in index
        assert (
            f'id="{str(code).lower()}"'
            in (site / f"reference/errors/{subject}/index.html").read_text()
        )
    settings = (site / "reference/errors/1xxx/index.html").read_text()
    assert "unknown variable … in the environment" in settings
    assert "<td>130</td>" in index


def test_messages_are_found_where_an_error_is_made_by_names_or_by_a_factory() -> None:
    found = messages_of_sites()
    assert "no Pump is registered in etcd (start one: penstock pump)" in found["NO_PUMP"]
    assert "no database is chosen (write the table as schema.table)" in found["DDL_OBJECT"]


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


LOOKING = ("penstock source status", "penstock verify", "penstock ctl")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/start").glob("*.md")), ids=lambda p: p.stem)
def test_a_quick_start_is_nine_commands_at_most_from_nothing_to_the_first_row(page: Path) -> None:
    installing = re.findall(r"```\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)[0]
    typed = [line[2:] for line in page.read_text().splitlines() if line.startswith("$ ")]
    doing = [line for line in typed if not line.startswith(LOOKING)]
    assert len(doing) >= 1
    assert len(installing.splitlines()) + len(doing) <= 9


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


@pytest.mark.parametrize("page", sorted((ROOT / "docs/start").glob("*.md")), ids=lambda p: p.stem)
def test_a_quick_start_removes_what_it_made(page: Path) -> None:
    text = page.read_text()
    removed = re.findall(r"^rm -r (.*)$", text, re.MULTILINE)
    for name in " ".join(removed).split():
        assert text.count(name.rstrip("*")) > 1 or name == "data.source", name
    assert removed or page.stem == "run"


def test_the_privileges_of_the_pages_are_those_that_a_start_asks_for() -> None:
    text = (ROOT / "docs/install.md").read_text()
    upstream, downstream = re.findall(r"^GRANT (.*) ON \*\.\* TO penstock", text, re.MULTILINE)
    wanted = [*FOLLOWING, *LOADING, *LOCKING, "SELECT"]
    assert sorted(upstream.split(", ")) == sorted(wanted)
    names = downstream.split(", ")

    def missing(granted: list[str]) -> bool:
        grants = [f"GRANT {', '.join(granted)} ON *.* TO `penstock`@`%`"]
        version, me = "10.11.6-MariaDB", "'penstock'@'%'"
        checks = judge_server(version, True, grants, me, "tidb_binlog", is_read_only=False)
        return not all(each.passed for each in checks)

    assert not missing(names)
    assert all(missing([*names[:n], *names[n + 1 :]]) for n in range(len(names)))
    kafka = target_of("kafka://penstock:secret@127.0.0.1:9092/?format=canal-json&prefix=shop")
    assert isinstance(kafka, KafkaTarget)
    for command in acls(kafka):
        assert command in text
    quick = (ROOT / "docs/start/mysql.md").read_text()
    for grant in re.findall(r"^GRANT .*$", text, re.MULTILINE):
        assert grant in quick


TIDB = {"docs/start/tidb.md"}
"""Pages whose TOML is the settings of a TiDB."""
WITH_TOML = {
    *(f"drainer/guide/{name}.md" for name in (
        "applying", "delta", "files", "filters_and_routes", "kafka", "resources",
        "several_outputs", "tidb_upstream", "when_it_stops",
    )),
    "docs/copies.md", "docs/security.md", "pumpclient/README.md", "pumpclient/mysql/README.md",
}  # fmt: skip


def toml_blocks() -> Iterator[tuple[str, str]]:
    for page in sorted({*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")}):
        for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
            yield str(page.relative_to(ROOT)), block


def problem_of(kind: type[Any], file: Path) -> str:
    """Return the reason why a file is not the settings of this kind; empty if it is."""
    try:
        loaded = read_settings(
            kind, ["--config", str(file)], prog="node", env_prefix="NODE", env={}
        )
        if hasattr(loaded, "filter"):
            Rules(loaded.filter)
    except NeedsOperator as error:
        return str(error)
    return ""


def test_every_settings_file_of_a_page_is_one_that_a_node_takes(tmp_path: Path) -> None:
    found = Counter[str]()
    for page, text in toml_blocks():
        (tmp_path / "node.toml").write_text(text)
        found[page] += 1
        if page not in TIDB:
            kinds = (DrainerConfig, PumpConfig, SourceConfig)
            problems = [problem_of(kind, tmp_path / "node.toml") for kind in kinds]
            assert "" in problems, (page, text, problems)
    assert found.keys() >= WITH_TOML


def ports_of(addr: str) -> set[int]:
    """Return the ports of a node's service and of its pages."""
    port = int(addr.rpartition(":")[2])
    return {port, port + 1000}


@pytest.mark.parametrize(
    ("page", "count"),
    [("drainer/guide/several_outputs.md", 3), ("drainer/guide/when_it_stops.md", 1)],
)
def test_drainers_of_a_page_share_no_port_with_each_other_or_with_another_node(
    page: str, count: int
) -> None:
    text = (ROOT / page).read_text()
    taken = [ports_of(each) for each in re.findall(r'^(?:.* --)?addr ?= ?"?([\d.:]+)', text, re.M)]
    assert len(taken) == count
    others = ports_of(PumpConfig().addr) | {2379}
    for single in (SourceConfig().status_addr, CONSOLE):
        others.add(int(single.rpartition(":")[2]))
    if count == 1:
        taken.append(ports_of(DrainerConfig().addr))
    found = [*others, *itertools.chain(*taken)]
    assert sorted(found) == sorted(set(found))


def test_no_page_installs_a_distribution_from_the_index_while_none_is_published() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/**/*.md")]
    for page in {
        each for each in pages if ".venv" not in each.parts and each.name != "CHANGELOG.md"
    }:
        for line in re.findall(r"pip install ([^`\n]*)", page.read_text()):
            assert not re.match(r"'?penstock", line), f"{page}: pip install {line}"


def test_the_changelog_begins_with_the_version_and_its_date() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    wanted = rf"{re.escape(__version__)} \((unreleased|\d{{4}}-\d\d-\d\d)\)"
    assert re.fullmatch(wanted, headings[0])
