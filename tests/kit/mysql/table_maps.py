"""Table maps of a stream: each TABLE_MAP is taken, and gives the decoder of the rows after it."""

from collections.abc import Callable

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TABLE_ID_SIZE, TableMap

_KEPT_MAX = 4096
_NO_TABLE = NO_TABLE.to_bytes(TABLE_ID_SIZE, "little")


class TableMaps:
    """The TABLE_MAPs of a stream, and the decoders of their tables.

    `choose` gives a table's decoder, or None for a table whose rows no one wants: they are never
    read. It is asked once for each different map.
    """

    def __init__(
        self, flavor: Flavor, choose: Callable[[TableMap], Decoder | None] = Decoder
    ) -> None:
        self._flavor = flavor
        self._choose = choose
        self._kept: dict[bytes, Decoder | None] = {}
        self._of_id: dict[bytes, Decoder | None] = {
            NO_TABLE.to_bytes(TABLE_ID_SIZE, "little"): None
        }

    def add(self, body: bytes) -> None:
        """Take a TABLE_MAP: rows with its id are of its table, until the statement ends."""
        rest = body[TABLE_ID_SIZE:]
        try:
            self._of_id[body[:TABLE_ID_SIZE]] = self._kept[rest]
        except KeyError:
            decoder = self._choose(TableMap.decode(body, self._flavor))
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._of_id[body[:TABLE_ID_SIZE]] = self._kept[rest] = decoder

    def decoder_of(self, body: bytes) -> Decoder | None:
        """Return the decoder of a rows event's table, None for one that is not wanted.

        Raises `Malformed` when no TABLE_MAP gave its id.
        """
        try:
            return self._of_id[body[:TABLE_ID_SIZE]]
        except KeyError:
            number = int.from_bytes(body[:TABLE_ID_SIZE], "little")
            raise Malformed(
                f"rows of table id {number}, which no TABLE_MAP gave",
                hint="begin at the start of a transaction",
                code=Code.BINLOG_UNDECODABLE,
            ) from None

    def forget(self) -> None:
        """Drop all ids, as a rotation and the end of a statement do; decoders are kept."""
        self._of_id = {_NO_TABLE: None}

    def forget_if_ended(self, body: bytes) -> None:
        """Drop all ids when this rows event is its statement's last."""
        if body[TABLE_ID_SIZE] & STMT_END:
            self.forget()
