"""The promises of every sink, kept by this one: `pytest test_json_lines.py`."""

import itertools
import json
from pathlib import Path
from typing import Any

from penstock.testing import Seen, SinkContract


class TestJsonLines(SinkContract):
    """See `SinkContract`."""

    def url(self, folder: Path) -> str:
        return f"jsonl://{folder}/changes.jsonl"

    def seen(self, url: str) -> Seen:
        text = Path(url.removeprefix("jsonl://")).read_text(encoding="utf-8")
        lines: list[dict[str, Any]] = [json.loads(each) for each in text.splitlines() if each]
        changes = [each for each in lines if "commit_ts" in each]
        seen: Seen = []
        for ts, group in itertools.groupby(changes, key=lambda each: each["commit_ts"]):
            made = list(group)
            seen.append((ts, made[0].get("ddl") or [each["after"]["id"] for each in made]))
        return seen
