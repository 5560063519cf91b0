"""Measures, and prints one JSON object per figure.

    python -m tests.bench [spine | the beginning of a name ...]

    {"name", "value", "unit", "baseline", "ratio", "detail"}

`baseline` is measured in the same run, `ratio` is value over baseline (for times: baseline over
value would flatter, so it is value over baseline there too). Machines differ; ratios last longer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import apply_merge, decode, lag, pump_pull, pump_write
from tests.bench.figure import Figure

Bench = Callable[[Path], Iterator[Figure]]

SPINE: dict[str, Bench] = {
    "decode.": decode.measure,
    "pump.write.": pump_write.measure,
    "pump.pull.": pump_pull.measure,
    "apply.merge.": apply_merge.measure,
    "lag.": lag.measure,
}


def chosen(words: list[str]) -> list[Bench]:
    """Return the benchmarks that `words` ask for; all of them without any."""
    if not words or words == ["spine"]:
        return list(SPINE.values())
    return [
        bench
        for prefix, bench in SPINE.items()
        if any(prefix.startswith(word) or word.startswith(prefix) for word in words)
    ]


def main() -> int:
    """Run what was asked for; return 2 when nothing has that name."""
    benches = chosen(sys.argv[1:])
    if not benches:
        print(f"no benchmark begins with {sys.argv[1:]}; there are {list(SPINE)}", file=sys.stderr)
        return 2
    for bench in benches:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
            for figure in bench(Path(home)):
                print(json.dumps(figure.as_json()), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
