"""Events: makes messages of every change in commit order; the tasks' work for strategy `events`.

    unit ── decoded rows, transaction after transaction ──> an encoder ──> messages, in that order

An encoder is pure, so any task may process a unit, any number of times. To add a format, add a
module beside `tidb_binlog.py`, or in `topics/` if a message is a row, and a line in
`event_unit.py`.
"""
