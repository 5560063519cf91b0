"""Command: `penstock tail` prints committed changes as they come, a line each.

    penstock tail                                     every change from now on
    penstock tail --table shop.orders --table 'log.*' changes of these tables
    penstock tail --after beginning -o json           all that the Pumps still have, as JSON
    penstock tail --after beginning --until now       the same, up to the present

It reads the stream without a name (`drainer.stream`), so it keeps no Pump from purging. A line of
JSON has `commit_ts`, `committed_at`, `kind` (insert, update, delete or ddl), `schema`, and `table`,
`before` and `after` of a row, or `query` of a DDL.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.node.output import JSON, add_output, plain, time_text, write_line
from penstock.settings.load import ETCD_URLS, Parser

PROG = "penstock tail"
_LOOK_S = 0.2
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
    parser.add_argument(
        "--until", default="", metavar="PLACE",
        help="end after all changes up to there: now, or a commit_ts (default: never)",
    )  # fmt: skip
    parser.add_argument(
        "--cut", type=int, default=0, metavar="N",
        help="show at most N characters of a value, and how many it has",
    )  # fmt: skip
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
    until_ts = _until(asked, tls.tls)
    with Reader.connect(
        asked.etcd_urls, after=_after(asked.after), filter=chosen, tls=tls.tls
    ) as reader:
        for each in _up_to(reader, until_ts) if until_ts else reader:
            for line in _lines(each, asked.cut):
                if asked.output == JSON:
                    write_line(line)
                else:
                    sys.stdout.write(f"{_text(line)}\n")
                left = None if left is None else left - 1
                if left == 0:
                    return command.DONE
            sys.stdout.flush()
    return command.DONE


def _until(asked: argparse.Namespace, tls: Any) -> int:
    """Return the commit_ts to end at, 0 for none; `now` is the cluster's time."""
    from penstock.cluster.etcd import connect
    from penstock.oracle.client import open_oracle

    if asked.until != "now":
        return _ts(asked.until, "--until", "give now or a commit_ts") if asked.until else 0
    etcd = connect(asked.etcd_urls, tls=tls)
    with closing(etcd), closing(open_oracle(etcd, tls=tls)) as oracle:
        return oracle.get_ts()


def _up_to(reader: Any, until_ts: int) -> Iterator[Any]:
    from drainer.stream.decoder import Reached

    while Reached.from_text(reader.checkpoint).checkpoint.commit_ts < until_ts:
        each = reader.get(_LOOK_S)
        if each is not None:
            if each.commit_ts > until_ts:
                return
            yield each


def _ts(text: str, flag: str, hint: str) -> int:
    if not text.isdecimal():
        raise NeedsOperator(f"{flag} {text}: no place", hint, Code.COMMAND_INVALID)
    return int(text)


def _after(text: str) -> int:
    from penstock.stream import BEGINNING, NOW

    if text in ("now", "beginning"):
        return NOW if text == "now" else BEGINNING
    return _ts(text, "--after", "give now, beginning or a commit_ts")


def _pattern(text: str) -> Any:
    from penstock.stream import TablePattern

    schema, dot, table = text.partition(".")
    if not (schema and dot and table):
        raise NeedsOperator(
            f"--table {text}: no table", "write schema.table or 'schema.*'", Code.COMMAND_INVALID
        )
    return TablePattern(db_name=schema, tbl_name=table)


def _lines(each: Any, cut: int = 0) -> Iterator[dict[str, Any]]:
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
            "before": _shown(change.before, cut),
            "after": _shown(change.after, cut),
        }


def _shown(row: Mapping[str, Any] | None, cut: int) -> dict[str, object] | None:
    if row is None or not cut:
        return None if row is None else {name: plain(value) for name, value in row.items()}
    return {name: _cut(value, cut) for name, value in row.items()}


def _cut(value: Any, cut: int) -> object:
    """Return a value as `plain` does, bytes as 0x…; of a longer one the beginning and its size."""
    if isinstance(value, bytes | bytearray | memoryview):
        more = f"… ({len(value):,} bytes)" if 2 * len(value) > cut else ""
        return f"0x{value[: cut // 2].hex()}{more}"
    shown: Any = plain(value)
    is_long = isinstance(shown, str) and len(shown) > cut
    return f"{shown[:cut]}… ({len(shown):,} characters)" if is_long else shown


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
