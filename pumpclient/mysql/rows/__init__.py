"""Decodes rows as MySQL and MariaDB log them: TABLE_MAP, rows events, and every column type.

    table_map       the table that a number denotes, and the known facts about its columns
    rows_event      the columns in the images of a rows event, and the generated function that reads
                    the images of one table
    column_types    from a column to its `Reading`: the encoding of each type's values in an image
    json_binary     binary JSON, and partial updates
    rows_decoder    from rows events to values

A `Reading` gives the layout of a value in an image (`codes` or `prefix`) and the expression that
decodes it. A server that logs little metadata needs `TableMap.completed` with the table's
definition.

`tests/unit/pumpclient/mysql/test_rows_events.py` compares the generated code with
`Decoder.value_by_value`; `tests/integration/test_mysql_rows_mariadb.py` compares with the server.
"""
