"""`python -m deploy.monitoring` writes the files that Prometheus, Grafana and people read.

penstock.rules.yml         alerts, for Prometheus' rule_files
penstock.rules.test.yml    checks when each alert fires and when not: promtool test rules
grafana.json               the dashboard
runbook.md                 the meaning and the remedy of each alert
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.monitoring.alerts import ALERTS, PAGE, Alert
from deploy.monitoring.dashboard import grafana

FOLDER: Final = Path(__file__).parent
_WIDTH = 100
_HEAD = "# Made by `python -m deploy.monitoring` from alerts.py.\n"


def files() -> dict[str, str]:
    tests = [_test(each, is_firing=fires) for each in ALERTS for fires in (True, False)]
    return {
        "penstock.rules.yml": _yaml({"groups": [{"name": "penstock", "rules": _rules()}]}),
        "penstock.rules.test.yml": _yaml({"rule_files": ["penstock.rules.yml"], "tests": tests}),
        "grafana.json": json.dumps(grafana(), indent=2) + "\n",
        "runbook.md": _runbook(),
    }


def _yaml(content: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(content), sort_keys=False, width=_WIDTH)
    return _HEAD + text


def _rules() -> list[dict[str, Any]]:
    return [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": f"{each.minutes}m",
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "description": each.remedy},
        }
        for each in ALERTS
    ]


def _test(alert: Alert, *, is_firing: bool) -> dict[str, Any]:
    series = alert.fires if is_firing else alert.is_quiet
    return {
        "name": f"{alert.name} {'fires' if is_firing else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})',
                "eval_time": f"{alert.minutes + 4}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if is_firing else [],
            }
        ],
    }


def _runbook() -> str:
    parts = [
        "# Runbook\n",
        textwrap.fill(
            "What each alert of `penstock.rules.yml` means, and what to do. `page` wakes someone,"
            " `ticket` can wait for the day. Made by `python -m deploy.monitoring` from alerts.py.",
            _WIDTH,
        ),
    ]
    return "\n".join([*parts, *map(_page, ALERTS)])


def _page(alert: Alert) -> str:
    after = f"after {alert.minutes} min" if alert.minutes else "at once"
    urgency = "wakes someone" if alert.severity == PAGE else "can wait for the day"
    return "\n\n".join(
        [
            f"\n## {alert.name}",
            f"```\n{alert.expr}\n```",
            f"{after[0].upper()}{after[1:]}; it {urgency}.",
            textwrap.fill(f"**It means:** {alert.meaning}", _WIDTH, break_on_hyphens=False),
            textwrap.fill(f"**What to do:** {alert.remedy}", _WIDTH, break_on_hyphens=False) + "\n",
        ]
    )


def main() -> int:
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
