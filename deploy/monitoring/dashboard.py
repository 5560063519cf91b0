"""The dashboard: the first view for a person, from the writers on the left to the downstream.

Each panel is one question; its expressions name only metrics that nodes have, which a test verifies
with a real Prometheus that scrapes a real cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_COLUMNS = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: its question, its unit in Grafana's words, and its lines with their legends."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str = ""


def _quantiles(histogram: str, by: str) -> tuple[tuple[str, str], ...]:
    rates = f"sum by (le, {by}) (rate({histogram}_bucket{_RATE}))"
    return tuple(
        (f"histogram_quantile({q}, {rates})", f"p{q * 100:g} {{{{{by}}}}}") for q in (0.5, 0.99)
    )


def _rate(counter: str, by: str) -> str:
    return f"sum by ({by}) (rate({counter}{_RATE}))"


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Overview",
        (
            Panel(
                "How far is the downstream behind?",
                "s",
                (("penstock_drainer_lag_seconds", "{{instance}}"),),
            ),
            Panel(
                "Transactions",
                "ops",
                (
                    (_rate("penstock_pump_binlogs_written_total", "instance"), "in {{instance}}"),
                    (_rate("penstock_drainer_transactions_total", "instance"), "out {{instance}}"),
                ),
                "Binlogs that Pumps made durable, two for a transaction, and transactions applied.",
            ),
            Panel(
                "Which nodes are up?",
                "bool_on_off",
                (
                    ('penstock_pump_state{state="online"}', "{{instance}}"),
                    ('penstock_drainer_state{state="online"}', "{{instance}}"),
                    ('up{job="penstock"}', "answers {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Writers and Pumps",
        (
            Panel(
                "What does a binlog take to be durable?",
                "s",
                _quantiles("penstock_pump_acknowledge_seconds", "instance"),
            ),
            Panel(
                "What does one fdatasync take?",
                "s",
                _quantiles("penstock_pump_fdatasync_seconds", "instance"),
            ),
            Panel(
                "How many binlogs does one sync cover?",
                "short",
                _quantiles("penstock_pump_group_binlogs", "instance"),
            ),
            Panel(
                "Bytes",
                "Bps",
                ((_rate("penstock_pump_write_bytes_sum", "instance"), "{{instance}}"),),
            ),
            Panel(
                "How many disks have each Pump's log?",
                "short",
                (
                    ("penstock_pump_copies", "{{instance}}"),
                    ("max(penstock_pump_copies_wanted)", "wanted"),
                ),
                "Disks on the list; one that still lacks older segments counts. Each change begins"
                " an epoch.",
            ),
            Panel(
                "What is refused?",
                "ops",
                (
                    (
                        _rate("penstock_pump_binlogs_refused_total", "instance, reason")
                        + " or vector(0)",
                        "{{instance}} {{reason}}",
                    ),
                    (
                        _rate("binlog_pump_storage_error_count", "instance, type"),
                        "error {{instance}} {{type}}",
                    ),
                ),
            ),
            Panel(
                "Connections and calls",
                "short",
                (
                    ("penstock_pump_connections", "connections {{instance}}"),
                    ("penstock_pump_calls", "calls {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Merge",
        (
            Panel(
                "Since when does the merge stand?",
                "s",
                (("penstock_drainer_low_water_held_seconds", "{{instance}}"),),
            ),
            Panel(
                "Who holds it?",
                "bool_yes_no",
                (("penstock_drainer_pump_holds_low_water", "{{nodeID}}"),),
            ),
            Panel(
                "How far is each Pump's stream behind?",
                "s",
                (
                    ("penstock_drainer_pump_lag_seconds", "{{nodeID}}"),
                    ("penstock_pump_stream_lag_seconds", "at {{instance}}"),
                ),
            ),
            Panel(
                "Open transactions",
                "s",
                (("penstock_pump_oldest_open_prewrite_seconds", "oldest, {{instance}}"),),
            ),
        ),
    ),
    (
        "Downstream",
        (
            Panel(
                "Rows by kind",
                "ops",
                ((_rate("binlog_drainer_event", "instance, type"), "{{type}}"),),
            ),
            Panel(
                "What does a batch take downstream?",
                "s",
                _quantiles("binlog_drainer_execute_duration_time", "instance"),
            ),
            Panel(
                "What did the last batch take?",
                "s",
                (
                    ("penstock_drainer_last_batch_generate_seconds", "generate"),
                    ("penstock_drainer_last_batch_commit_seconds", "commit"),
                ),
            ),
            Panel(
                "What does not go downstream?",
                "short",
                (
                    (
                        "sum by (cause, table) (penstock_drainer_rows_left_out_total) or vector(0)",
                        "{{cause}} {{table}}",
                    ),
                    ("penstock_drainer_missed_rows_total", "missed {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Files and topics",
        (
            Panel(
                "Messages",
                "ops",
                ((_rate("penstock_drainer_messages_total", "instance"), "{{instance}}"),),
                "Records of files, and messages of a Kafka; 0 where the downstream gets SQL.",
            ),
            Panel(
                "Bytes of messages",
                "Bps",
                ((_rate("penstock_drainer_message_bytes_total", "instance"), "{{instance}}"),),
                "What a transaction takes is above: what a batch takes downstream.",
            ),
        ),
    ),
    (
        "Lake and files",
        (
            Panel(
                "Commits and compactions",
                "ops",
                (
                    (_rate("penstock_drainer_output_commits_total", "instance"), "{{instance}}"),
                    (
                        _rate("penstock_drainer_output_compactions_total", "instance"),
                        "compactions {{instance}}",
                    ),
                ),
                "Each table of a lake has commits of its own; 0 where the downstream is no files.",
            ),
            Panel(
                "How long ago was the last commit?",
                "s",
                (
                    (
                        "(time() - penstock_drainer_output_last_commit_timestamp_seconds) *"
                        " (penstock_drainer_output_last_commit_timestamp_seconds > bool 0)",
                        "{{instance}}",
                    ),
                ),
                "Commits with changes: it grows while upstream is quiet, too.",
            ),
            Panel(
                "Rows written into a lake",
                "ops",
                (
                    (
                        _rate("penstock_drainer_output_rows_total", "instance"),
                        "written {{instance}}",
                    ),
                    (_rate("penstock_drainer_rows_total", "instance"), "changed {{instance}}"),
                ),
                "A merge writes again what else is in a file that it changes; an update is two"
                " lines of a change log.",
            ),
            Panel(
                "Files",
                "ops",
                (
                    (
                        _rate("penstock_drainer_output_files_added_total", "instance"),
                        "added {{instance}}",
                    ),
                    (
                        _rate("penstock_drainer_output_files_removed_total", "instance"),
                        "removed {{instance}}",
                    ),
                ),
                "What is removed from a table stays on the disk for the retention.",
            ),
            Panel(
                "Bytes of files",
                "Bps",
                (
                    (
                        _rate("penstock_drainer_output_bytes_added_total", "instance"),
                        "added {{instance}}",
                    ),
                    (
                        _rate("penstock_drainer_output_bytes_removed_total", "instance"),
                        "removed {{instance}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Disks and memory",
        (
            Panel(
                "Free on the Pumps' volumes",
                "bytes",
                (("penstock_pump_storage_available_bytes", "{{instance}}"),),
            ),
            Panel("Memory", "bytes", (("process_resident_memory_bytes", "{{instance}}"),)),
            Panel(
                "Processors",
                "percentunit",
                (("rate(process_cpu_seconds_total" + _RATE + ")", "{{instance}}"),),
            ),
        ),
    ),
    (
        "Sources",
        (
            Panel(
                "How far is a source behind its server?",
                "s",
                (("penstock_source_behind_seconds", "{{source}}"),),
            ),
            Panel(
                "Transactions of sources",
                "ops",
                ((_rate("penstock_source_transactions_total", "source"), "{{source}}"),),
            ),
            Panel(
                "Which sources are syncing?",
                "bool_yes_no",
                (("penstock_source_is_syncing", "{{source}}"),),
            ),
        ),
    ),
)


def expressions() -> list[str]:
    return [expr for _, panels in ROWS for panel in panels for expr, _ in panel.lines]


def grafana() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
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
