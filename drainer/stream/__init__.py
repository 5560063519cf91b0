"""Stream: committed transactions for a program to read, merged over all Pumps, in commit order.

    from penstock.stream import Reader, Transaction

    with Reader.connect("127.0.0.1:2379", after=stored) as reader:
        for each in reader:
            if isinstance(each, Transaction):
                for change in each.changes:
                    print(change.kind, change.table, change.before, change.after)
            store(each.checkpoint)

It is a Drainer without a downstream: the same pullers, merge, schema, filters and row changes, and
therefore the same promises. Each transaction comes once, in commit order, none that was rolled
back, a DDL in its place. Purged binlogs are an error and never a gap. The program takes the
downstream's place: it stores the checkpoint of the elements that it has processed, and passes it
when it restarts.

    pullers ── merge ── listed ──> decoder ──> one run waits ──> Reader, AsyncReader
                          │         schema, filters,
                          │         rows to decode on request
                          └ no further than the watermark before the last listing of the Pumps

**Readers poll for new Pumps.** A Drainer has a port, where a new Pump announces itself before it
takes a Prewrite, so an unreachable Drainer keeps Pumps from joining. A program must not be able to
do that. A reader therefore lists the Pumps before it lets anything up to a timestamp T pass, where
T is a watermark. A Pump that is not yet listed lists itself later, and takes its first Prewrite
after that, whose `commit_ts` the oracle hands out later still. The oracle had handed T out before
the listing. All binlogs of that Pump are therefore above T. The cost is one read of etcd for each
step forward, ten a second at most (`ReaderOptions.list_interval_s`).

**A name keeps binlogs that are still needed.** A reader with a name is listed among the Drainers,
in the state `reading`: Pumps purge nothing after its acknowledged position, whether it runs or not.
A reader without a name reads the binlogs that exist.
"""

from drainer.intake.merge_holder import PumpView
from drainer.sinks.committed import Change
from drainer.stream.batches import Batch
from drainer.stream.decoder import Ddl, Transaction
from drainer.stream.feed import BEGINNING, NOW, ReaderOptions
from drainer.stream.reader import AsyncReader, Reader
from penstock.filters import EventRule, ExpressionRule, FilterConfig, RouteRule, TablePattern
from penstock.security.tls import Tls

__all__ = [
    "BEGINNING",
    "NOW",
    "AsyncReader",
    "Batch",
    "Change",
    "Ddl",
    "EventRule",
    "ExpressionRule",
    "FilterConfig",
    "PumpView",
    "Reader",
    "ReaderOptions",
    "RouteRule",
    "TablePattern",
    "Tls",
    "Transaction",
]
