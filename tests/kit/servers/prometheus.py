"""A private Prometheus, loopback only, that scrapes given nodes with the rules of the project."""

import json
import subprocess
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from penstock.local import FILES
from penstock.local.process import ServerProcess, Unpacked, free_port, open_local

START_S_MAX, ANSWER_S_MAX = 60.0, 10.0
MONITORING = FILES / "monitoring"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*Unpacked("prometheus").command("bin/promtool"), *arguments],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Prometheus(ServerProcess):
    """Scrapes every second; `targets` are host:port of status pages by the node's name."""

    def __init__(self, home: Path, targets: Mapping[str, str]) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "penstock.rules.yml")],
            "scrape_configs": [
                {
                    "job_name": "penstock",
                    "static_configs": [
                        {"targets": [address], "labels": {"instance": name}}
                        for name, address in targets.items()
                    ],
                }
            ],
        }
        home.mkdir(parents=True, exist_ok=True)
        config = home / "prometheus.yml"
        config.write_text(json.dumps(settings))  # YAML contains JSON.
        super().__init__(
            [
                *Unpacked("prometheus").command("bin/prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            log=home / "prometheus.log",
        )

    def start(self) -> Self:
        """Start it and wait until it is ready; raise `Retryable` with its log when it is not."""
        return super().start().until_answers(f"http://{self._address}/-/ready", START_S_MAX)

    def query(self, expr: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": expr})
        url = f"http://{self._address}/api/v1/query?{asked}"
        with open_local(url, timeout_s=ANSWER_S_MAX) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def firing(self) -> set[str]:
        found = self.query('ALERTS{alertstate="firing"}')
        return {each["metric"]["alertname"] for each in found}
