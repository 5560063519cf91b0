"""Measures, and prints one JSON object per figure.

    python -m tests.bench [spine | the beginning of a name ...]

`pump` is all that concerns the Pump, `drainer` all that concerns the Drainer. `pump.restart`,
`pump.stored` and `catchup.10g` write tens of gigabytes, and run only under their own names and for
these two. `outputs.kafka.memory` takes minutes, and runs under its name and for `outputs`. `tidb`
runs under its name only, too: it needs the TiDB that `deploy/go.sh .venv/servers tidb` builds. So
does `peers`, which needs the jars that `deploy/jars.sh .venv/servers kafka connect` fetches.
BENCH_SCALE=0.1 makes all of them smaller. Standard error names the benchmark in progress. If one
fails, the others run, and the exit code is 1.

    {"name", "value", "unit", "baseline", "ratio", "detail"}

`baseline` is measured in the same run, `ratio` is value over baseline (for times: baseline over
value would flatter, so it is value over baseline there too). Machines differ; ratios last longer.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bench import (
    apply,
    catchup,
    decode,
    drainer,
    lag,
    merge,
    mysql_follow,
    mysql_load,
    mysql_relay,
    outputs,
    outputs_kafka,
    peers,
    pump_copies,
    pump_stored,
    pump_unary,
    pump_write,
    spark_cluster,
    spark_query,
    tidb_upstream,
)
from tests.bench.rig import Figure

Bench = Callable[[Path], Iterator[Figure]]

SPINE: dict[str, Bench] = {
    "decode.": decode.measure,
    "pump.write.unary. pump.write.batched.": pump_write.measure,
    "pump.pull.1k": partial(pump_write.measure_pull, "1k"),
    "apply.merge.existing": apply.measure_existing,
    "lag.p": partial(lag.measure, "lag", 1000),
}

OTHERS: dict[str, Bench] = {
    "merge.k drainer.merge": merge.measure,
    **{apply.names(n): partial(apply.measure_cells, n) for n in apply.COUNTS},
    "drainer.relay.": drainer.measure_relay,
    "outputs.delta.": outputs.measure_delta,
    "outputs.files.": outputs.measure_files,
    **{
        f"outputs.kafka.{name}": partial(outputs_kafka.measure, name)
        for name in outputs_kafka.FORMATS
    },
    "outputs.kafka.lag": outputs_kafka.measure_lag,
    "drainer.restart drainer.takeover": drainer.measure_restart,
    "spark.cluster.": spark_cluster.measure,
    "spark.query.": spark_query.measure,
    "lag.mariadb. drainer.lag": partial(lag.measure, "lag.mariadb", 2000),
    "apply.replica.mixed drainer.replica": apply.measure_replica,
    "apply.load_data.insert drainer.load_data": apply.measure_load_data,
    **{
        f"pump.write.{size}.": partial(pump_write.measure_matrix, size) for size in pump_write.SIZES
    },
    "pump.unary.": pump_unary.measure,
    "pump.copies.rate": pump_copies.measure,
    "pump.copies.refill pump.copies.scrub": pump_copies.measure_refill,
    "pump.takeover.": pump_copies.measure_takeover,
    "pump.ack_p99.": pump_write.measure_ack,
    "pump.pull.128b": partial(pump_write.measure_pull, "128b"),
    "pump.pull.10k": partial(pump_write.measure_pull, "10k"),
    "pump.pull.100k": partial(pump_write.measure_pull, "100k"),
    "pump.rebuild.": pump_stored.measure_rebuild,
    "relay.write. mysql.relay.": mysql_relay.measure,
    "mysql.decode.": decode.measure_mysql,
    "mysql.load": mysql_load.measure,
    "mysql.e2e.": mysql_follow.measure,
    "mysql.lag.": mysql_follow.measure_lag,
}

LONG: dict[str, Bench] = {
    "pump.restart.": pump_stored.measure_restart,
    "pump.stored.": pump_stored.measure,
    f"{catchup.NAME} drainer.catchup": catchup.measure,
    "outputs.kafka.memory": outputs_kafka.measure_memory,
    "peers.kafka.": peers.measure,
    "tidb.catchup": tidb_upstream.measure_catchup,
    "tidb.lag.": tidb_upstream.measure_lag,
}
"""Run only when asked for: minutes and tens of gigabytes each, a TiDB, or Kafka Connect."""


def chosen(words: list[str]) -> dict[str, Bench]:
    """Return the benchmarks that `words` ask for; all but the long ones without any."""
    if words == ["spine"]:
        return SPINE
    return {
        prefixes: bench
        for prefixes, bench in (SPINE | OTHERS | LONG).items()
        if _is_chosen(prefixes, words, is_long=prefixes in LONG)
    }


def _is_name(word: str) -> bool:
    return any(word in prefixes.split() for prefixes in SPINE | OTHERS | LONG)


def _is_chosen(prefixes: str, words: list[str], *, is_long: bool) -> bool:
    if not words:
        return not is_long
    return any(
        word == prefix
        if _is_name(word)
        else word.startswith(prefix.rstrip("."))
        or (prefix.startswith(word) and (not is_long or word == prefix.split(".")[0]))
        for prefix in prefixes.split()
        for word in words
    )


def main() -> int:
    """Run what was asked for; return 1 if a benchmark fails, 2 when nothing has that name."""
    benches = chosen(sys.argv[1:])
    if not benches:
        names = " ".join(SPINE | OTHERS | LONG)
        print(f"no benchmark begins with {sys.argv[1:]}; there are {names}", file=sys.stderr)
        return 2
    code = 0
    for number, (prefixes, bench) in enumerate(benches.items(), 1):
        print(f"{number} of {len(benches)}: {prefixes}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as home:
            try:
                for figure in bench(Path(home)):
                    print(json.dumps(figure.as_json()), flush=True)
            except Exception:
                traceback.print_exc()
                code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
