"""Table maps of a stream: each TABLE_MAP is taken, and gives the decoder of the rows after it."""

from collections.abc import Callable

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.rows_decoder import Decoder, decoder_for
from pumpclient.mysql.rows.rows_event import STMT_END
from pumpclient.mysql.rows.table_map import NO_TABLE, TABLE_ID_SIZE, TableMap

_KEPT_MAX = 4096


class TableMaps:
    """The TABLE_MAPs of a stream, and the decoders of their tables.

    `choose` gives a table's decoder, or None for a table whose rows no one wants: they are never
    read. It is asked once for each different map.
    """

    def __init__(
        self,
        flavor: Flavor,
        choose: Callable[[TableMap], Decoder | None] = decoder_for,
        *,
        id_size: int = TABLE_ID_SIZE,
    ) -> None:
        self._flavor = flavor
        self._choose = choose
        self._id_size = id_size
        self._kept: dict[bytes, Decoder | None] = {}
        self._of_id: dict[bytes, Decoder | None] = {NO_TABLE.to_bytes(id_size, "little"): None}

    def add(self, body: bytes) -> None:
        """Take a TABLE_MAP: rows with its id are of its table, until the statement ends."""
        rest = body[self._id_size :]
        try:
            self._of_id[body[: self._id_size]] = self._kept[rest]
        except KeyError:
            decoder = self._choose(TableMap.decode(body, self._flavor, id_size=self._id_size))
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._of_id[body[: self._id_size]] = self._kept[rest] = decoder

    def decoder_of(self, body: bytes) -> Decoder | None:
        """Return the decoder of a rows event's table, None for one that is not wanted.

        Raises `Malformed` when no TABLE_MAP gave its id.
        """
        try:
            return self._of_id[body[: self._id_size]]
        except KeyError:
            number = int.from_bytes(body[: self._id_size], "little")
            raise Malformed(
                f"rows of table id {number}, which no TABLE_MAP gave",
                hint="begin at the start of a transaction",
                code=Code.BINLOG_UNDECODABLE,
            ) from None

    def forget(self) -> None:
        """Drop all ids, as a rotation and the end of a statement do; decoders are kept."""
        self._of_id = {NO_TABLE.to_bytes(self._id_size, "little"): None}

    def forget_if_ended(self, body: bytes) -> None:
        """Drop all ids when this rows event is its statement's last."""
        if body[self._id_size] & STMT_END:
            self.forget()
