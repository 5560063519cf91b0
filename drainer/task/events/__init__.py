"""Events: every change in commit order, as messages; what tasks do for strategy `events`.

    unit ── decoded rows, transaction after transaction ──> an encoder ──> messages, in that order

An encoder is pure, so a unit may be worked on by any task, any number of times. To add a format is
a module beside `tidb_binlog_file.py`, or in `topics/` where a message is a row, and a line in
`encoding.py`.
"""
