"""A real Prometheus scrapes a real cluster: every plot has data, and alerts tell what is true."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.monitoring.__main__ import FOLDER, files
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.dashboard import expressions
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, module_server, on_servers
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_source import SourceRig, cleared
from tests.kit.servers.pages import asked, scraped, scraped_as_open_metrics
from tests.kit.servers.prometheus import Prometheus, promtool
from tests.kit.wait import eventually

server = module_server(on_servers(MARIADB))
LONG_S = 60
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@pytest.fixture
def scraping(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Start a Prometheus: `scraping(pump_1="127.0.0.1:9250", …)`."""
    started: list[Prometheus] = []

    def start(**targets: str) -> Prometheus:
        named = {name.replace("_", "-"): address for name, address in targets.items()}
        started.append(Prometheus(tmp_path / "prometheus", named).start())
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.mark.thorough
def test_every_plot_has_data_of_a_cluster_that_is_well_and_every_alert_can_fire(
    rig: SourceRig,
    server: AnyBinlogServer,
    replication: Replication,
    scraping: Callable[..., Prometheus],
) -> None:
    fresh = cleared(server)
    source = rig.begin(fresh)
    drainer = replication.add_drainer()
    nodes = {"pump_1": rig.pumps[0], "drainer_1": drainer}
    pages = {name: node.status().details["status_pages"] for name, node in nodes.items()}
    pages["source_1"] = f"http://{source.address}/"
    prometheus = scraping(**{name: urlsplit(url).netloc for name, url in pages.items()})
    empty = [expr.replace("$__rate_interval", "10s") for expr in expressions()]
    rows = itertools.count()

    def has_all() -> bool:
        fresh.insert(1, first=next(rows))
        empty[:] = [expr for expr in empty if not prometheus.query(expr)]
        return not empty

    with contextlib.suppress(AssertionError):
        eventually(has_all, LONG_S)
    assert empty == []
    assert prometheus.firing() == set()
    served = {name: asked(f"{url}metrics")[1] for name, url in pages.items()}
    eventually(lambda: {asked(f"{url}readyz") for url in pages.values()} == {(200, "ok\n")}, LONG_S)
    for url in pages.values():
        assert scraped_as_open_metrics(url).keys() == scraped(url).keys()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", "".join(served.values()), re.MULTILINE))
    for alert in ALERTS:
        for name in re.findall(r"\b(?:penstock|binlog)_\w+", alert.expr):
            assert name.removesuffix("_bucket") in kinds, alert.name
    wanted = reference(served)
    assert REFERENCE.read_text(encoding="utf-8") == wanted, f"put this into {REFERENCE}:\n{wanted}"


def reference(served: dict[str, str]) -> str:
    parts = [
        "# Every metric\n\nEach node serves its metrics at `/metrics` of its `status-addr`. Names"
        " that start with `binlog_`\nare those of TiDB-Binlog. A Pump and a Drainer also serve the"
        " metrics of their process\n(`process_…`, `python_…`).\n"
    ]
    for title, node in (("Pump", "pump_1"), ("Drainer", "drainer_1"), ("Source", "source_1")):
        kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", served[node], re.MULTILINE))
        abouts = re.findall(r"^# HELP ((?:penstock|binlog)_\S+) (.*)$", served[node], re.MULTILINE)
        rows = [f"| `{name}` | {kinds[name]} | {about} |" for name, about in sorted(abouts)]
        parts.append(
            "\n".join([f"## {title}\n", "| metric | kind | meaning |", "|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def test_each_alert_fires_when_it_is_to_and_else_not() -> None:
    checked = promtool("check", "rules", "penstock.rules.yml")
    assert f"{len(ALERTS)} rules found" in checked.stdout, checked.stderr
    tested = promtool("test", "rules", "penstock.rules.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_files_are_those_that_the_tables_make() -> None:
    for name, text in files().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, "python -m deploy.monitoring"


def test_the_sample_settings_of_prometheus_are_ones_that_it_takes() -> None:
    checked = promtool("check", "config", "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
