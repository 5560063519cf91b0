"""Intake: merges the streams of all Pumps into one, in the order of commit_ts.

Why the order is right:

1. A writer's Prewrite is durable on its Pump before the writer asks the oracle for `commit_ts`, and
   a Pump streams a commit only after all its earlier Prewrites are matched or resolved. Each Pump's
   stream therefore rises strictly and misses nothing.
2. The merge emits only at or below the *low water* (the watermark): the minimum, over all Pumps, of
   the timestamp up to which each has been received. When a binlog is emitted, every Pump has sent
   all its binlogs below it. A silent, paused or dead Pump blocks the watermark. The log names such
   a Pump after three seconds; it is never skipped unless an operator declares it lost. Fake binlogs
   advance idle Pumps, immediately if the merge waits for one. A Pump leaves when it is offline
   *and* its final record in etcd says that all its binlogs have arrived here (`pump_set.py`).
   An offline Pump without such a record is waited for; if its record names binlogs that have not
   arrived, the Drainer stops with the range. The checkpoint lists the participants (`pumps`), so a
   Drainer that starts waits for the same Pumps, even for a Pump that etcd no longer lists.
   The time when a Pump entered the cluster is stored apart from its status
   (`/penstock/v1/entered/`): a Pump that a Drainer first meets after it has taken binlogs is pulled
   from that time. A Pump that returns after the merge continued without it is pulled from where it
   was left. A transaction from there that has no place in the order any more stops the Drainer with
   the range, or is skipped and counted (`late_transactions_left_out`) if `ignore-txn-commit-ts`
   names it.
3. A Pump that joins lists itself in etcd, *then* notifies every Drainer whose status is fresh,
   *then* takes its first write. The Drainer publishes itself, *then* lists Pumps. Whichever comes
   second sees the other. When `Notify` returns, the new Pump is in the merge, and its commits will
   get timestamps that the oracle had not handed out by then.
4. A Drainer that was frozen or cut off may have been taken for dead. Binlogs that arrive more than
   six seconds after its last pass over etcd are therefore not merged before the next pass succeeds.
   During an outage of etcd the merge waits; without etcd no writer gets a timestamp from Penstock's
   oracle either.
5. The Drainer stops at disorder within a Pump, and at two different transactions with one
   `commit_ts`. It never sorts them out silently.
"""
