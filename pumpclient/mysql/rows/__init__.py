"""Rows as MySQL and MariaDB log them: TABLE_MAP, rows events, and every column type.

table_map      which table a number means, and what is known of its columns
rows_event     which columns the images of a rows event have, and where they begin
column_types   from a column to its `Reading`: the one place that knows all types
values/        how the values of each type lie in an image
generator      a function made for one table that reads its images
decoder        from rows events to values

A `Reading` says how a value lies in an image (`codes` or `prefix`) and which expression reads it. A
server that logs little metadata needs `TableMap.completed` with the table's definition.

`tests/unit/pumpclient/mysql/test_fast_paths.py` holds the generated code to `ImageReader`, which
reads value by value; `tests/integration/test_mysql_replication_oracle.py` compares with
mysql-replication where that is right.
"""
