"""Intake: the streams of all Pumps into one, in the order of commit_ts.

Why the order is right:

1. A writer's Prewrite is durable on its Pump before the writer asks the oracle for `commit_ts`, and
   a Pump streams a commit only after all its earlier Prewrites are matched or resolved. So each
   Pump's stream rises strictly and misses nothing.
2. The merge emits only at or below the *low water*, the least that any Pump has been received up
   to. Whatever is emitted, every Pump has sent all it has below it. A Pump that is silent, paused
   or dead holds the low water; it is named in the log after three seconds and never skipped, unless
   an operator gives it up. Idle Pumps move on by fake binlogs, at once where the merge waits for
   one. A Pump leaves when it is offline *and* its last word in etcd says that all it holds has
   arrived here (`pump_set.py`); offline without such a word it is waited for, and with more than
   has arrived it stops the Drainer with the range. Who takes part is in the checkpoint (`pumps`),
   so a Drainer that starts waits for the same Pumps, even for one that etcd does not list any more.
   When a Pump came into the cluster stands apart from its status (`/penstock/v1/entered/`): one
   that a Drainer meets only after it has taken binlogs is pulled from there. A Pump that comes back
   after the merge continued without it is pulled from where it was left: a transaction from there
   that has no place in the order any more stops the Drainer with the range, or is left out and
   counted (`late_transactions_left_out`) when it is in `ignore-txn-commit-ts`.
3. A Pump that joins lists itself in etcd, *then* notifies every Drainer whose status is fresh,
   *then* takes its first write. The Drainer publishes itself, *then* lists Pumps. Whichever comes
   second sees the other. When `Notify` returns, the new Pump is in the merge, and its commits will
   get timestamps that the oracle had not handed out by then.
4. A Drainer that was frozen or cut off may have been taken for dead. So what arrives more than six
   seconds after its last pass over etcd is not merged before the next pass has succeeded. While
   etcd is away the merge therefore waits; without etcd no writer gets a timestamp from Penstock's
   oracle either.
5. Disorder within a Pump, or two different transactions with one `commit_ts`, are never sorted out
   silently: the Drainer stops.
"""
