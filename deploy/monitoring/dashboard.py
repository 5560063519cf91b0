"""The dashboard: the first view for a person, from the writers on the left to the downstream.

Each panel is one question; its expressions name only metrics that nodes have, which a test verifies
with a real Prometheus that scrapes a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

_COLUMNS = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """One plot: its question, its unit in Grafana's words, and its lines with their legends."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    about: str


def _panel(title: str, unit: str, *lines: str | tuple[str, str], about: str = "") -> Panel:
    """Return a plot; a line without a legend is that of an instance."""
    shown = [(each, "{{instance}}") if isinstance(each, str) else each for each in lines]
    return Panel(title, unit, shown, about)


def _quantiles(histogram: str) -> Iterator[tuple[str, str]]:
    rates = f"sum by (le, instance) (rate({histogram}_bucket{_RATE}))"
    for q in (0.5, 0.99):
        yield f"histogram_quantile({q}, {rates})", f"p{q * 100:g} {{{{instance}}}}"


def _rate(counter: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({counter}{_RATE}))"


ROWS: Final[Mapping[str, Sequence[Panel]]] = {
    "Overview": [
        _panel("How far is the downstream behind?", "s", "penstock_drainer_lag_seconds"),
        _panel(
            "Transactions",
            "ops",
            (_rate("penstock_pump_binlogs_written_total"), "in {{instance}}"),
            (_rate("penstock_drainer_transactions_total"), "out {{instance}}"),
            about="Binlogs that Pumps made durable, two for a transaction, and transactions"
            " applied.",
        ),
        _panel(
            "Which nodes are up?",
            "bool_on_off",
            'penstock_pump_state{state="online"}',
            'penstock_drainer_state{state="online"}',
            ('up{job="penstock"}', "answers {{instance}}"),
        ),
    ],
    "Writers and Pumps": [
        _panel(
            "What does a binlog take to be durable?",
            "s",
            *_quantiles("penstock_pump_acknowledge_seconds"),
        ),
        _panel(
            "What does one fdatasync take?", "s", *_quantiles("penstock_pump_fdatasync_seconds")
        ),
        _panel(
            "How many binlogs does one sync cover?",
            "short",
            *_quantiles("penstock_pump_group_binlogs"),
        ),
        _panel("Bytes", "Bps", _rate("penstock_pump_write_bytes_sum")),
        _panel(
            "How many disks have each Pump's log?",
            "short",
            "penstock_pump_copies",
            ("max(penstock_pump_copies_wanted)", "wanted"),
            about="Disks on the list; one that still lacks older segments counts. Each change"
            " begins an epoch.",
        ),
        _panel(
            "What is refused?",
            "ops",
            (
                "sum by (instance, reason)"
                " (rate(penstock_pump_binlogs_refused_total[$__rate_interval])) or vector(0)",
                "{{instance}} {{reason}}",
            ),
            (
                _rate("binlog_pump_storage_error_count", "instance, type"),
                "error {{instance}} {{type}}",
            ),
        ),
        _panel(
            "Connections and calls",
            "short",
            ("penstock_pump_connections", "connections {{instance}}"),
            ("penstock_pump_calls", "calls {{instance}}"),
        ),
    ],
    "Merge": [
        _panel("Since when does the merge stand?", "s", "penstock_drainer_low_water_held_seconds"),
        _panel(
            "Who holds it?", "bool_yes_no", ("penstock_drainer_pump_holds_low_water", "{{nodeID}}")
        ),
        _panel(
            "How far is each Pump's stream behind?",
            "s",
            ("penstock_drainer_pump_lag_seconds", "{{nodeID}}"),
            ("penstock_pump_stream_lag_seconds", "at {{instance}}"),
        ),
        _panel(
            "Open transactions",
            "s",
            ("penstock_pump_oldest_open_prewrite_seconds", "oldest, {{instance}}"),
        ),
    ],
    "Downstream": [
        _panel(
            "Rows by kind", "ops", (_rate("binlog_drainer_event", "instance, type"), "{{type}}")
        ),
        _panel(
            "What does a batch take downstream?",
            "s",
            *_quantiles("binlog_drainer_execute_duration_time"),
        ),
        _panel(
            "What did the last batch take?",
            "s",
            ("penstock_drainer_last_batch_generate_seconds", "generate"),
            ("penstock_drainer_last_batch_commit_seconds", "commit"),
        ),
        _panel(
            "What does not go downstream?",
            "short",
            (
                "sum by (cause, table) (penstock_drainer_rows_left_out_total) or vector(0)",
                "{{cause}} {{table}}",
            ),
            ("penstock_drainer_missed_rows_total", "missed {{instance}}"),
        ),
    ],
    "Files and topics": [
        _panel(
            "Messages",
            "ops",
            _rate("penstock_drainer_messages_total"),
            about="Records of files, and messages of a Kafka; 0 where the downstream gets SQL.",
        ),
        _panel(
            "Bytes of messages",
            "Bps",
            _rate("penstock_drainer_message_bytes_total"),
            about="What a transaction takes is above: what a batch takes downstream.",
        ),
    ],
    "Lake and files": [
        _panel(
            "Commits and compactions",
            "ops",
            _rate("penstock_drainer_output_commits_total"),
            (_rate("penstock_drainer_output_compactions_total"), "compactions {{instance}}"),
            about="Each table of a lake has commits of its own; 0 where the downstream is no"
            " files.",
        ),
        _panel(
            "How long ago was the last commit?",
            "s",
            "(time() - penstock_drainer_output_last_commit_timestamp_seconds) *"
            " (penstock_drainer_output_last_commit_timestamp_seconds > bool 0)",
            about="Commits with changes: it grows while upstream is quiet, too.",
        ),
        _panel(
            "Rows written into a lake",
            "ops",
            (_rate("penstock_drainer_output_rows_total"), "written {{instance}}"),
            (_rate("penstock_drainer_rows_total"), "changed {{instance}}"),
            about="A merge writes again what else is in a file that it changes; an update is two"
            " lines of a change log.",
        ),
        _panel(
            "Files",
            "ops",
            (_rate("penstock_drainer_output_files_added_total"), "added {{instance}}"),
            (_rate("penstock_drainer_output_files_removed_total"), "removed {{instance}}"),
            about="What is removed from a table stays on the disk for the retention.",
        ),
        _panel(
            "Bytes of files",
            "Bps",
            (_rate("penstock_drainer_output_bytes_added_total"), "added {{instance}}"),
            (_rate("penstock_drainer_output_bytes_removed_total"), "removed {{instance}}"),
        ),
    ],
    "Disks and memory": [
        _panel("Free on the Pumps' volumes", "bytes", "penstock_pump_storage_available_bytes"),
        _panel("Memory", "bytes", "process_resident_memory_bytes"),
        _panel("Processors", "percentunit", "rate(process_cpu_seconds_total[$__rate_interval])"),
    ],
    "Sources": [
        _panel(
            "How far is a source behind its server?",
            "s",
            ("penstock_source_behind_seconds", "{{source}}"),
        ),
        _panel(
            "Transactions of sources",
            "ops",
            (_rate("penstock_source_transactions_total", "source"), "{{source}}"),
        ),
        _panel(
            "Which sources are syncing?",
            "bool_yes_no",
            ("penstock_source_is_syncing", "{{source}}"),
        ),
    ],
}


def expressions() -> list[str]:
    return [expr for panels in ROWS.values() for panel in panels for expr, _ in panel.lines]


def grafana() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, top, _COLUMNS, 1)})
        width = _COLUMNS // min(len(row), 3)
        for number, panel in enumerate(row):
            line, column = divmod(number, 3)
            place = _place(column * width, top + 1 + line * _HEIGHT, width, _HEIGHT)
            panels.append({**_plot(panel), "gridPos": place})
        top += 1 + _HEIGHT * ((len(row) + 2) // 3)
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "title": "Penstock",
        "uid": "penstock",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _plot(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(panel.lines)
        ],
    }
