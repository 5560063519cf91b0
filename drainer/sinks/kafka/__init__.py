"""Kafka: every change as a message, each batch with its checkpoint in one Kafka transaction.

    shop.db.item                a topic for each table: rows, in the order of their commits
    shop.ddl                    DDL, and watermarks: nothing at or before that commit_ts follows
    shop.transaction            begin and end of transactions, in Debezium's format
    <cluster id>_obinlog        instead of these: TiDB-Binlog's own messages, by choice
    _penstock_checkpoint        compacted: prefix and cluster id -> the checkpoint, and with a
                                topic's name: its identity, and the ends of its partitions

**Once.** Messages and checkpoint become visible together, to readers with
`isolation.level=read_committed`. All runs of one output have one `transactional.id`. A run that
starts to write therefore aborts the open transaction of a dead run, and fences a live one. It then
reads the checkpoint topic to its end. If the checkpoint differs from the last checkpoint that this
run knew, another Drainer or an operator has written it. A commit whose answer was lost is looked up
in the same way.

**Lost topics.** A topic may be deleted and created again under its name. Its id and the ends of its
partitions are stored with the messages, and compared before more are sent.
"""
