"""Command `penstock source`."""

from collections.abc import Sequence

from penstock.node import command


def main(argv: Sequence[str] | None = None) -> int:
    def body() -> int:
        from pumpclient.mysql.source.command import main

        return main(argv)

    return command.run("penstock source", body, extra="mysql")


if __name__ == "__main__":
    raise SystemExit(main())
