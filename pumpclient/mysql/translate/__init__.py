"""From what a MySQL or MariaDB server wrote into its binlog to what Penstock's writers send.

    columns        which column of an image is which column of the table, and its datum's bytes
    transcode      rows events to row bytes, by a function made for each pair of maps
    sql            a statement's bytes under its session to text that `penstock.ddl` reads
    ddl            a statement to DDL piece by piece, to nothing, or to a stop with a hint
    online         shadow tables of gh-ost and pt-osc
    transactions   events to finished transactions, in both servers' framing

All of it is pure: no clock, no socket, no thread.
"""
