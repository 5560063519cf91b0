"""Kafka: every change as a message, each batch with its checkpoint in one Kafka transaction.

    shop.db.item                a topic for each table: rows, in the order of their commits
    shop.ddl                    DDL, and watermarks: nothing at or before that commit_ts follows
    shop.transaction            begin and end of transactions, in Debezium's format
    <cluster id>_obinlog        instead of these: TiDB-Binlog's own messages, by choice
    _penstock_checkpoint        compacted: prefix and cluster id -> the checkpoint, and with a
                                topic's name: which topic it was, and where its partitions ended

**Once.** Messages and checkpoint become visible together, to readers with
`isolation.level=read_committed`. All runs of one output have one `transactional.id`, so one that
begins to write ends what a dead one has left open, and fences one that still lives. It then reads
the checkpoint to the topic's end: is it not the one that this run last knew, another Drainer, or an
operator, was here. A commit whose answer got lost is looked up in the same way.

**Still there.** A topic is a name that may be deleted and created again. Its id and the ends of its
partitions are stored with the messages, and compared before more are sent.
"""
