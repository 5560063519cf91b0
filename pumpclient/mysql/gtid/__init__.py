"""Sets of global transaction ids, in both flavours.

    MySQL     3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,…   every id that was executed
    MariaDB   0-1-100,1-2-7                                  the last id of each domain

A MySQL set names every transaction, so it can have holes. A MariaDB position names the last one of
each replication domain; all smaller sequence numbers of the domain are behind it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pumpclient.mysql.gtid.mariadb import MariadbGtid, MariadbGtidSet
from pumpclient.mysql.gtid.mysql import MysqlGtid, MysqlGtidSet

__all__ = [
    "Flavor",
    "Gtid",
    "GtidSet",
    "MariadbGtid",
    "MariadbGtidSet",
    "MysqlGtid",
    "MysqlGtidSet",
    "parse_gtid_set",
]

Gtid = MysqlGtid | MariadbGtid
GtidSet = MysqlGtidSet | MariadbGtidSet


class Flavor(StrEnum):
    """Which of the two kinds of server a binlog comes from."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @classmethod
    def of_version(cls, version: str) -> Self:
        """Return the flavour of a server by what `SELECT VERSION()` says."""
        return cls("mariadb" if "mariadb" in version.lower() else "mysql")


def parse_gtid_set(text: str, flavor: Flavor) -> GtidSet:
    """Return the set that `text` names, empty for an empty text.

    Raises `Malformed` for a text that is no set of this flavour.
    """
    if flavor is Flavor.MYSQL:
        return MysqlGtidSet.parse(text)
    return MariadbGtidSet.parse(text)
