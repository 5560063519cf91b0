"""`penstock verify`: compares an upstream with a downstream, and repairs the latter when asked to.

Exit codes: 0 equal (also after a repair), 1 rows differ or are undecided, 2 it could not be done.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import unquote

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable, coded
from penstock.node.output import add_output, plain, show
from penstock.settings.load import Parser
from pumpclient.mysql.protocol.server import ServerAddress, address_in
from pumpclient.mysql.verify.sides import Downstream, MysqlSide, SqliteSide
from pumpclient.mysql.verify.source_pages import SourcePages
from pumpclient.mysql.verify.verifier import Verifier, VerifyReport, names_of

_STATEMENT_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    args = command_parser().parse_args(argv)
    try:
        return verify(args)
    except Retryable as error:  # 1 means that rows differ.
        sys.stderr.write(f"penstock verify: {coded(error)}\n")
        return 2


def verify(args: argparse.Namespace) -> int:
    if args.source_status and (not args.repair or args.tables):
        raise NeedsOperator(
            "--source-status repairs the tables that a source names",
            "give it with --repair and without --tables",
            Code.COMMAND_INVALID,
        )
    names = names_of(args.source_config, args.route)
    if args.repair and not _is_confirmed(args):
        sys.stderr.write("penstock verify: nothing was done\n")
        return 2
    with (
        closing(MysqlSide(_address(args.upstream, "UPSTREAM"))) as upstream,
        closing(_downstream(args)) as downstream,
    ):
        report = Verifier(
            upstream,
            downstream,
            _say,
            names=replace(names, source=args.source or names.source),
            tables=args.tables or ["*"],
            strict=args.strict,
            rows_per_chunk=args.rows_per_chunk,
            wait_s=args.wait_s,
            differences_max=args.max_differences,
            repair=SourcePages(args.source_status) if args.source_status else args.repair,
        ).run()
    lines = [*map(str, report.differences), _summary(report)]
    lines += [f"{table}: repaired of what foreign keys had changed" for table in report.ended]
    lines += [f"{table}: not repaired: {why}" for table, why in report.open.items()]
    show(args, _facts(report), "\n".join(lines))
    return 1 if report.open or not (report.is_equal or args.source_status) else 0


def _facts(report: VerifyReport) -> dict[str, Any]:
    facts = {"is_equal": report.is_equal, **asdict(report)}
    for each in facts["differences"]:
        each["key"] = [plain(value) for value in each["key"]]
    return facts


def _summary(report: VerifyReport) -> str:
    hidden = report.different - len(report.differences)
    more = f"… and {hidden} more\n" if hidden else ""
    text = f"{report.tables} tables, {report.chunks} chunks at commit_ts {report.commit_ts}: "
    text += "equal" if not report.different else f"{report.different} differences"
    if report.repaired:
        text += f", {report.repaired} repaired"
    if report.only_downstream:
        text += f", {report.only_downstream} tables, or tables' columns, only downstream"
    if report.undecided:
        text += f", {report.undecided} rows undecided: they kept changing, or the Drainer is behind"
    return f"{more}{text}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _is_confirmed(args: argparse.Namespace) -> bool:
    if args.yes:
        return True
    sys.stderr.write(
        "Rows of the downstream that differ will be overwritten or deleted, while a Drainer may be"
        " at work there: best pause it.\nType yes to go on: "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "yes"


def _downstream(args: argparse.Namespace) -> Downstream:
    if args.downstream.startswith("sqlite:///"):
        return SqliteSide(unquote(args.downstream.removeprefix("sqlite:///")))
    return MysqlSide(_address(args.downstream, "DOWNSTREAM"), args.checkpoint_table)


def _address(url: str, side: str) -> ServerAddress:
    """Parse a URL; the password may come from the environment instead."""
    password = os.environ.get(f"PENSTOCK_{side}_PASSWORD", "")
    return replace(address_in(url, side.lower(), password), statement_timeout_s=_STATEMENT_S)


def command_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="penstock verify", description="Compare an upstream with a downstream.")
    parser.add_argument("--version", action="version", version=f"penstock verify {__version__}")
    url = "mysql://user:password@host:port/ (or tidb://); password also from PENSTOCK_{}_PASSWORD"
    parser.add_argument("--upstream", required=True, metavar="URL", help=url.format("UPSTREAM"))
    parser.add_argument(
        "--downstream", required=True, metavar="URL",
        help=url.format("DOWNSTREAM") + ", or sqlite:///path",
    )  # fmt: skip
    parser.add_argument("--tables", nargs="+", metavar="PATTERN", help="such as 'shop.*'")
    parser.add_argument(
        "--source", default="", metavar="ID", help="source-id, when there are several"
    )
    parser.add_argument(
        "--source-config",
        default="",
        metavar="FILE",
        help="settings of the source: its filters, routes, shard-mode and source-id count",
    )
    parser.add_argument(
        "--route",
        action="append",
        default=[],
        metavar="FROM=TO",
        help="a table's name downstream, such as 'shop_*.order_*=shop.orders'; may be repeated",
    )
    parser.add_argument(
        "--source-status",
        default="",
        metavar="HOST:PORT",
        help='with --repair: the tables that foreign keys changed (cascades = "repair"), as this'
        " running source names them",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="tables and columns that only the downstream has are differences",
    )
    add_output(parser)
    parser.add_argument("--checkpoint-table", default="tidb_binlog.checkpoint", metavar="NAME")
    parser.add_argument("--rows-per-chunk", type=int, default=50_000, metavar="N")
    parser.add_argument(
        "--wait-s", type=float, default=10.0, metavar="S",
        help="how long the downstream may take to catch up, for each chunk that differs",
    )  # fmt: skip
    parser.add_argument("--max-differences", type=int, default=100, metavar="N")
    parser.add_argument("--repair", action="store_true", help="write upstream's rows")
    parser.add_argument("--yes", action="store_true", help="do not ask before a repair")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
