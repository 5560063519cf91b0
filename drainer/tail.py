"""Command: `penstock tail` prints committed changes as they come, a line each.

    penstock tail                                     every change from now on
    penstock tail --table shop.orders --table 'log.*' changes of these tables
    penstock tail --after beginning -o json           all that the Pumps still have, as JSON

It reads the stream without a name (`drainer.stream`), so it keeps no Pump from purging. A line of
JSON has `commit_ts`, `committed_at`, `kind` (insert, update, delete or ddl), `schema`, and `table`,
`before` and `after` of a row, or `query` of a DDL.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.node.output import JSON, add_output, plain, time_text, write_line
from penstock.settings.load import ETCD_URLS, Parser

PROG = "penstock tail"
_ETCD = "127.0.0.1:2379"


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(PROG, lambda: _run(_parser().parse_args(argv)), extra="stream")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROG, description="Print committed changes as they come, in commit order.")
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument(
        "--etcd-urls", metavar="HOST:PORT,…", default=os.environ.get(ETCD_URLS, _ETCD),
        help=f"etcd of the cluster (default: {ETCD_URLS}; without it {_ETCD})",
    )  # fmt: skip
    parser.add_argument(
        "--table", action="append", default=[], metavar="SCHEMA.TABLE",
        help="only this table, or tables such as 'shop.*'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--after", default="now", metavar="PLACE", help="now (default), beginning, or a commit_ts"
    )
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="end after N lines")
    for flag, what in (
        ("--ssl-ca", "the CA of the nodes' certificates; turns TLS on"),
        ("--ssl-cert", "a certificate to show, where nodes have cert-allowed-cn"),
        ("--ssl-key", "its private key"),
    ):
        parser.add_argument(flag, default="", metavar="FILE", help=f"PEM file of {what}")
    add_output(parser)
    return parser


def _run(asked: argparse.Namespace) -> int:
    from penstock.security.tls import Security, SecurityConfig
    from penstock.stream import FilterConfig, Reader

    tls = Security(
        SecurityConfig(ssl_ca=asked.ssl_ca, ssl_cert=asked.ssl_cert, ssl_key=asked.ssl_key)
    )
    chosen = FilterConfig(do_tables=tuple(map(_pattern, asked.table)))
    left = asked.lines
    with Reader.connect(
        asked.etcd_urls, after=_after(asked.after), filter=chosen, tls=tls.tls
    ) as reader:
        for each in reader:
            for line in _lines(each):
                if asked.output == JSON:
                    write_line(line)
                else:
                    sys.stdout.write(f"{_text(line)}\n")
                left = None if left is None else left - 1
                if left == 0:
                    return command.DONE
            sys.stdout.flush()
    return command.DONE


def _after(text: str) -> int:
    from penstock.stream import BEGINNING, NOW

    if text in ("now", "beginning"):
        return NOW if text == "now" else BEGINNING
    if not text.isdecimal():
        raise NeedsOperator(
            f"--after {text}: no place", "give now, beginning or a commit_ts", Code.COMMAND_INVALID
        )
    return int(text)


def _pattern(text: str) -> Any:
    from penstock.stream import TablePattern

    schema, dot, table = text.partition(".")
    if not (schema and dot and table):
        raise NeedsOperator(
            f"--table {text}: no table", "write schema.table or 'schema.*'", Code.COMMAND_INVALID
        )
    return TablePattern(db_name=schema, tbl_name=table)


def _lines(each: Any) -> Iterator[dict[str, Any]]:
    from penstock.stream import Ddl

    head = {"commit_ts": each.commit_ts, "committed_at": time_text(each.commit_ts)}
    if isinstance(each, Ddl):
        yield {**head, "kind": "ddl", "schema": each.schema, "query": each.query}
        return
    for change in each.changes:
        yield {
            **head,
            "kind": change.kind,
            "schema": change.schema,
            "table": change.table,
            "before": _shown(change.before),
            "after": _shown(change.after),
        }


def _shown(row: Mapping[str, Any] | None) -> dict[str, object] | None:
    return None if row is None else {name: plain(value) for name, value in row.items()}


def _text(line: Mapping[str, Any]) -> str:
    if line["kind"] == "ddl":
        return f"{line['committed_at']} ddl {line['schema']}: {line['query']}"
    before, after = line["before"], line["after"]
    head = f"{line['committed_at']} {line['kind']} {line['schema']}.{line['table']}"
    if before is None or after is None:
        return f"{head} {_columns(after or before)}"
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    same = {name: value for name, value in before.items() if name not in changed}
    return f"{head} {_columns(same or before)} -> {_columns(changed)}"


def _columns(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in row.items())


if __name__ == "__main__":
    raise SystemExit(main())
