"""From what a MySQL or MariaDB server wrote into its binlog to what Penstock's writers send.

    assembler            events to finished transactions, in both servers' framing
    transcoding/
      column_mapping     which column of an image is which one of the table, its datum's bytes
      transcode          rows events to row bytes, by a function made for each pair of maps
    statements/
      sql                a statement's bytes under its session to text for `penstock.ddl`
      ddl_pieces         a statement to DDL piece by piece, to nothing, or to a stop with a hint
      online             shadow tables of gh-ost and pt-osc

All of it is pure: no clock, no socket, no thread.
"""
