"""Stream: committed transactions for a program to read, merged over all Pumps, in commit order.

    from penstock.stream import Reader, Transaction

    with Reader.connect("127.0.0.1:2379", after=stored) as reader:
        for each in reader:
            if isinstance(each, Transaction):
                for change in each.changes:
                    print(change.kind, change.table, change.before, change.after)
            store(each.checkpoint)

It is a Drainer without a downstream: the same pullers, merge, schema, filters and row changes, so
the same promises. Each transaction comes once, in commit order, none that was rolled back, a DDL in
its place. What a Pump has purged is an error and never a gap. What takes the downstream's place is
the program: it stores the checkpoint of what it has done, and hands it back when it starts again.

    pullers ── merge ── listed ──> decoder ──> one run waits ──> Reader, AsyncReader
                          │         schema, filters,
                          │         rows to decode when asked for
                          └ no further than the low water before the last look at the Pumps

**A reader is notified by no one.** A Drainer has a port, where a new Pump announces itself before
it takes a Prewrite; so a Drainer that cannot be reached keeps Pumps from joining. A program must
not have that power. So a reader asks instead: before it lets anything up to a timestamp T pass,
where T is a low water, it lists the Pumps. One that is not listed yet lists itself later, and takes
its first Prewrite after that, whose `commit_ts` the oracle hands out later still. It had handed T
out before the look. So whatever that Pump will hold is above T. The price is one look at etcd for
each step forward, ten a second at most (`ReaderOptions.list_interval_s`).

**A name keeps what is still needed.** A reader with a name is listed among the Drainers, in the
state `reading`: Pumps purge nothing after what it has acknowledged, whether it runs or not. One
without a name reads what there is.
"""

from drainer.intake.merge_holder import PumpView
from drainer.stream.blocking import Reader
from drainer.stream.feed import BEGINNING, NOW, ReaderOptions
from drainer.stream.reader import AsyncReader
from drainer.stream.transaction import Change, Ddl, Transaction
from penstock.filters import EventRule, ExpressionRule, FilterConfig, RouteRule, TablePattern
from penstock.security.tls import Tls

__all__ = [
    "BEGINNING",
    "NOW",
    "AsyncReader",
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
