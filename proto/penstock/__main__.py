"""Command `penstock PROGRAM …`: runs every program of the distribution under one name.

A program is imported only when it is run, so a missing extra of one does not affect the others.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.settings.setting import did_you_mean


class Program(NamedTuple):
    """One program: the module whose `main(argv)` runs it, a line of help, and its extra."""

    module: str
    purpose: str
    extra: str = ""


PROGRAMS: Final[Mapping[str, Program]] = {
    "run": Program("penstock.local.run.__main__", "run a whole pipeline on this machine", "run"),
    "pump": Program("pump.__main__", "run a Pump, which keeps binlogs"),
    "drainer": Program("drainer.__main__", "run a Drainer, or answer the DDL it stopped at"),
    "source": Program("pumpclient.mysql.source.__main__", "run a MySQL or MariaDB as a writer"),
    "ctl": Program("penstock.ctl.commands", "look at a cluster and change the state of its nodes"),
    "console": Program("penstock.ctl.console.__main__", "show a cluster on one page", "console"),
    "tail": Program("drainer.tail", "print committed changes as they come", "stream"),
    "verify": Program("pumpclient.mysql.verify.__main__", "compare an upstream with a downstream"),
    "reparo": Program("drainer.reparo.__main__", "restore files up to a time", "drainer"),
    "init": Program("penstock.local.init", "write a folder of settings, units and a compose file"),
    "completion": Program("penstock.completion", "print a script that completes all of this"),
    "demo": Program("penstock.local.demo.__main__", "show the whole of it on this machine", "demo"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = PROGRAMS.get(arguments[0]) if arguments else None
    return command.run("penstock", lambda: _run(arguments), extra=program.extra if program else "")


def _run(arguments: list[str]) -> int:
    asked = arguments[0] if arguments else ""
    if asked in {"-h", "--help"}:
        lines = "\n".join(f"  {name:<10}  {each.purpose}" for name, each in PROGRAMS.items())
        sys.stdout.write(f"usage: penstock PROGRAM [ARGUMENT …]\n\n{lines}\n\n")
        sys.stdout.write("`penstock PROGRAM --help`: more\n")
        return command.DONE
    if asked in {"-V", "--version"}:
        sys.stdout.write(f"penstock {__version__}\n")
        return command.DONE
    if asked not in PROGRAMS:
        hint = did_you_mean(asked, PROGRAMS, f"one of {', '.join(PROGRAMS)}")
        raise NeedsOperator(
            f"no program {asked}" if asked else "which program?", hint, Code.COMMAND_INVALID
        )
    code: int = importlib.import_module(PROGRAMS[asked].module).main(arguments[1:])
    return code


if __name__ == "__main__":
    raise SystemExit(main())
