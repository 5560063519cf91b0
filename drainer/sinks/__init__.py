"""Sinks: write changes downstream; `protocol` is the interface, and each folder a downstream.

Why each transaction is applied once:

1. In `snapshot` mode, all SQL of a batch and the new checkpoint are one downstream transaction. The
   downstream is at one checkpoint or at the next, and a new run of the Drainer pulls after the
   checkpoint it finds there. It keeps no other position.
2. Tasks are pure: a `WorkUnit` in, `Statements` out, no connection to the downstream. A task that
   is lost, restarted, late or run twice changes nothing: the first answer counts, and an answer
   that is not committed has no effect.
3. A commit whose answer was lost is looked up, not repeated. Every transaction first locks the
   checkpoint row, which says whether the commit happened. The same row shows a second Drainer on
   the same downstream, which stops.
4. A DDL is a separate step. MySQL commits it implicitly, so its `commit_ts` is saved as intent
   before it runs; only for that one DDL may "already exists" mean done after a crash. The intent
   stays on record until the DDL has run.
5. Rows of a table that no longer exists are skipped and counted, with a line in the log. An unknown
   DDL, table id or schema version stops the Drainer (exit code 2) after all earlier changes are
   committed.
"""
