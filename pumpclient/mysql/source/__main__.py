"""`python -m pumpclient.mysql.source`, the same as the `mysql-source` script."""

from pumpclient.mysql.source.command import main

if __name__ == "__main__":
    raise SystemExit(main())
