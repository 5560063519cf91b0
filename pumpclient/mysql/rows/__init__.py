"""Rows as MySQL and MariaDB log them: TABLE_MAP, rows events, and every column type.

`TableMaps` takes the TABLE_MAPs of a stream and gives the `Decoder` of each rows event. `types`
ties a column to its `Reading`, which says how its value lies in an image: other generators share
it.
"""

from pumpclient.mysql.rows.columns import Column, WireType
from pumpclient.mysql.rows.decoder import Changes, Decoder, decoder_for
from pumpclient.mysql.rows.rows_event import Kind, RowsEvent
from pumpclient.mysql.rows.table_map import TableMap
from tests.kit.mysql.table_maps import TableMaps

__all__ = [
    "Changes",
    "Column",
    "Decoder",
    "Kind",
    "RowsEvent",
    "TableMap",
    "TableMaps",
    "WireType",
    "decoder_for",
]
