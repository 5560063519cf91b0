"""`python -m pumpclient.mysql.verify`, the same as `penstock verify`."""

from collections.abc import Sequence

from penstock.node import command


def main(argv: Sequence[str] | None = None) -> int:
    def body() -> int:
        from pumpclient.mysql.verify.command import main

        return main(argv)

    return command.run("penstock verify", body, extra="mysql")


if __name__ == "__main__":
    raise SystemExit(main())
