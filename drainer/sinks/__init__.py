"""Sinks: where the changes land; `protocol` is the promise, and each folder a downstream.

Why each transaction is applied once:

1. In `snapshot` mode, all SQL of a batch and the new checkpoint are one downstream transaction. The
   downstream is at one checkpoint or at the next, and a new run of the Drainer pulls after the one
   it finds there. It keeps nothing else.
2. Tasks are pure: a `WorkUnit` in, `Statements` out, no connection to the downstream. A task that
   is lost, restarted, late or run twice changes nothing: the first answer counts, and an answer
   that is not committed has not happened.
3. A commit whose answer got lost is looked up, not repeated: the checkpoint row, locked first in
   every transaction, says whether it happened. The same row shows a second Drainer on the same
   downstream, which stops.
4. A DDL is a step of its own. MySQL commits it implicitly, so its `commit_ts` is saved as intent
   before it runs; only for that one DDL may "already exists" mean done after a crash. The intent
   stays on record until the DDL has run.
5. Rows of a table that is gone by then are left out, counted, with a line in the log. An unknown
   DDL, an unknown table id, a schema version from nowhere stop the Drainer (exit code 2) with
   everything before committed.
"""
