"""Source: the committed changes of a cluster as a data source of Spark, `penstock`.

    from penstock.spark import PenstockSource

    spark.dataSource.register(PenstockSource)
    changes = spark.readStream.format("penstock").option("etcd", …).option("table", "shop.orders")

It is a reader (`drainer.stream`) that is divided between the driver and the executors:

    driver      pullers ── merge ── pieces ──> offsets, partitions     metadata only
    executors   partition ── Fetch from the Pumps ── decode ──> Arrow record batches

A *piece* is a run of consecutive transactions of one schema version. Pieces end at each DDL, and
are as small as the limits of a micro-batch; an offset is the end of a piece. An offset has the
commit_ts and the checkpoint of a reader, so that a query that restarts merges the same pieces: it
asks for the partitions between two offsets, and these have the same transactions each time.
Structured Streaming stores the offsets, and thereby each change is read exactly once.

Spark runs the driver's side of each streaming query in a Python process of its own; the feed opens
there, with the first question that needs it, and closes when the query stops.

    source        the classes that Spark calls
    options       the options of a query
    columns       a table's columns in Spark, and whether changes fit them
    pieces        the merged stream, cut into pieces and barriers
    plan          offsets and pieces for a query
    rows          the tasks: a partition's rows from the Pumps
"""

from drainer.spark_source.source import PenstockSource

__all__ = ["PenstockSource"]
