"""Command `penstock reparo`: settings, logs, and one restore.

With `-o json` the last line is an object, as each line of a printed change is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.node import command


def main(argv: Sequence[str] | None = None) -> int:
    return command.run("penstock reparo", lambda: _run(argv), extra="drainer")


def _run(argv: Sequence[str] | None) -> int:
    import logging

    from drainer.reparo.reparo_config import load_reparo_settings
    from drainer.reparo.restore import run
    from penstock.node.logs import start_logging
    from penstock.node.output import JSON, take_output, write_line

    form, arguments = take_output(sys.argv[1:] if argv is None else argv)
    config, notes = load_reparo_settings(arguments)
    start_logging(config.log_level, config.log_file)
    for note in notes:
        logging.getLogger("reparo").info("settings: %s", note)
    with command.private_files():
        made = run(config)
        if form == JSON:
            write_line(made.facts())
        else:
            sys.stdout.write(f"{made}\n")
    return command.DONE


if __name__ == "__main__":
    raise SystemExit(main())
