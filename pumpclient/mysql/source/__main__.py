"""`python -m pumpclient.mysql.source`, the same as the `mysql-source` script."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.node import command


def main(argv: Sequence[str] | None = None) -> int:
    def body() -> int:
        from pumpclient.mysql.source.command import main

        return main(argv)

    return command.run("mysql-source", body, extra="mysql")


if __name__ == "__main__":
    raise SystemExit(main())
